#include "page/run_file.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace metroplex::page {
namespace {

constexpr const char* kLineKinds[] = {"run", "memory", "time", "slowest"};

bool is_metrics(std::string_view text) {
  RunLine line;
  const std::string_view first = text.substr(0, text.find('\n'));
  if (!line.parse(first)) return false;
  if (line.iteration) return true;
  return std::any_of(std::begin(kLineKinds), std::end(kLineKinds), [&](const char* kind) {
    return line.json.is_object() && line.json.contains(kind) && line.json[kind].is_object();
  });
}

double number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

int64_t integer_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

Amounts read_amounts(const Json& object, const char* key) {
  Amounts amounts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return amounts;
  for (const auto& [name, value] : found->items()) {
    if (value.is_number()) amounts.emplace_back(name, value.get<double>());
  }
  return amounts;
}

Prediction read_prediction(const Json& object) {
  return {integer_at(object, "iteration"), read_amounts(object, "predicted"), read_amounts(object, "measured")};
}

}  // namespace

void Series::remove_from(int64_t iteration) {
  const auto first = std::lower_bound(iterations.begin(), iterations.end(), iteration);
  values.resize(static_cast<size_t>(first - iterations.begin()));
  iterations.resize(values.size());
}

void Series::append(int64_t iteration, double value) {
  if (!iterations.empty() && iterations.back() >= iteration) remove_from(iteration);
  iterations.push_back(iteration);
  values.push_back(value);
}

const Series* RunData::find(std::string_view metric) const {
  for (const auto& [name, series] : metrics) {
    if (name == metric) return &series;
  }
  return nullptr;
}

Series& RunData::metric(const std::string& metric) {
  for (auto& [name, series] : metrics) {
    if (name == metric) return series;
  }
  return metrics.emplace_back(metric, Series{}).second;
}

void RunData::remove_from(int64_t iteration) {
  for (auto& [name, series] : metrics) series.remove_from(iteration);
  for (auto& [layer, series] : expert_imbalance) series.remove_from(iteration);
  std::erase_if(restarts, [&](int64_t step) { return step >= iteration; });
  std::erase_if(skipped, [&](int64_t step) { return step >= iteration; });
  if (rounding.iteration >= iteration) rounding = {};
  std::erase_if(slowest, [&](const Slowest& interval) { return interval.to >= iteration; });
}

std::string find_metrics_file(files::FileSystem& disk, const std::string& run) {
  if (!disk.is_directory(run)) return run;
  std::vector<std::string> found;
  for (const std::string& name : disk.list(run)) {
    const std::string path = files::join_path(run, name);
    if (name.ends_with(".jsonl") && disk.file_size(path).value_or(0) > 0 && is_metrics(disk.map(path).text()))
      found.push_back(path);
  }
  MPX_CHECK(!found.empty(), "files", "'", run,
            "' contains no metrics file; set train.metrics_file when training, or pass the path of the file");
  MPX_CHECK(found.size() == 1, "files", "'", run, "' contains ", found.size(), " metrics files, including '",
            found[0], "' and '", found[1], "'; pass the path of one of them");
  return found[0];
}

RunReader::RunReader(files::FileSystem& disk, const std::string& path) : disk_(disk) {
  run_.path = path;
  MPX_CHECK(disk.file_size(path).has_value(), "files", "'", path,
            "' is not a file; pass the file of train.metrics_file, or its directory");
  const files::Bytes bytes = disk.map(path);
  MPX_CHECK(bytes.text().find('\n') == std::string_view::npos || is_metrics(bytes.text()), "files", "'", path,
            "' is not a metrics file; pass the file of train.metrics_file");
  read_more();
}

void RunReader::read_description() {
  const std::string path = run_.path + ".run";
  if (!disk_.file_size(path)) return;
  std::string text = disk_.read(path);
  if (text == description_) return;
  description_ = std::move(text);
  RunLine line;
  for (size_t begin = 0, end; (end = description_.find('\n', begin)) != std::string::npos; begin = end + 1)
    add_line(std::string_view(description_).substr(begin, end - begin), line);
}

void RunReader::clear() {
  RunData empty;
  std::swap(empty.path, run_.path);
  std::swap(empty.name, run_.name);
  run_ = std::move(empty);
  position_ = 0;
  last_step_ = -1;
  description_.clear();
}

bool RunReader::read_more() {
  // The id is read first: after a replacement between the two calls, the next read has another id.
  const std::optional<files::FileId> id = files::file_id(run_.path);
  try {
    bytes_ = disk_.map(run_.path);
  } catch (const base::Error&) { return false; }
  const bool replaced = id != id_ || bytes_.size < position_;
  const size_t before = position_;
  if (replaced) clear();
  id_ = id;
  read_description();
  const std::string_view text = bytes_.text();
  RunLine line;
  for (size_t end; (end = text.find('\n', position_)) != std::string_view::npos; position_ = end + 1)
    add_line(text.substr(position_, end - position_), line);
  return position_ != before || (replaced && before > 0);
}

void RunReader::add_line(std::string_view text, RunLine& line) {
  const bool blank = text.find_first_not_of(" \t\r") == std::string_view::npos;
  if (blank) return;
  if (!line.parse(text)) {
    ++run_.unreadable_lines;
    return;
  }
  if (line.iteration && line.split.empty()) {
    add_step(line);
  } else if (line.iteration) {
    for (size_t i = 0; i < line.count; ++i) {
      if (line.numbers[i].first == "lm loss")
        run_.metric(line.split + " loss").append(*line.iteration, line.numbers[i].second);
    }
  }
  if (!line.json.is_null()) add_nested(line.json);
}

void RunReader::add_step(const RunLine& line) {
  const int64_t iteration = *line.iteration;
  if (iteration <= last_step_) restart_at(iteration);
  last_step_ = iteration;
  for (size_t i = 0; i < line.count; ++i) {
    const auto& [name, value] = line.numbers[i];
    // Steps have the same numbers in the same order, so the search is rare.
    Series& series =
        i < run_.metrics.size() && run_.metrics[i].first == name ? run_.metrics[i].second : run_.metric(name);
    series.append(iteration, value);
  }
  if (line.skipped) run_.skipped.push_back(iteration);
}

void RunReader::restart_at(int64_t iteration) {
  run_.remove_from(iteration);
  run_.restarts.push_back(iteration);
}

void RunReader::add_nested(const Json& json) {
  if (const auto experts = json.find("experts"); experts != json.end() && experts->is_array()) {
    for (const Json& layer : *experts) {
      const double imbalance = layer.is_object() ? number_at(layer, "experts max over mean of a step") : std::nan("");
      if (std::isfinite(imbalance)) run_.expert_imbalance[integer_at(layer, "layer")].append(last_step_, imbalance);
    }
  }
  const auto object = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_object() ? &*found : nullptr;
  };
  if (const Json* layers = object("rounding")) run_.rounding = {last_step_, *layers};
  if (const Json* start = object("run")) {
    run_.start = *start;
    if (const int64_t done = integer_at(*start, "iteration"); last_step_ >= 0) {
      restart_at(done + 1);
      last_step_ = done;
    }
  }
  if (const Json* memory = object("memory")) run_.memory[integer_at(*memory, "rank")] = read_prediction(*memory);
  if (const Json* time = object("time")) run_.time = read_prediction(*time);
  if (const Json* slowest = object("slowest")) {
    const double seconds = number_at(*slowest, "seconds");
    run_.slowest.push_back({integer_at(*slowest, "from"), integer_at(*slowest, "to"), integer_at(*slowest, "rank"),
                            seconds, text_at(*slowest, "why"), text_at(*slowest, "text")});
  }
}

std::vector<RunReader> read_runs(files::FileSystem& disk, const std::vector<std::string>& runs) {
  std::vector<RunReader> readers;
  std::map<std::string, int> uses;
  for (const std::string& run : runs) {
    const std::string metrics_file = find_metrics_file(disk, run);
    for (const RunReader& reader : readers) {
      MPX_CHECK(!files::is_same_file(disk, metrics_file, reader.run().path), "config", "'", run,
                "' is the same file as '", reader.run().path, "'; pass each run once");
    }
    RunReader& reader = readers.emplace_back(disk, metrics_file);
    const std::string path = disk.canonical(reader.run().path), file = files::base_name(path);
    reader.rename(file == "metrics.jsonl" ? files::base_name(files::parent_directory(path))
                                          : file.substr(0, file.rfind(".jsonl")));
    ++uses[reader.run().name];
  }
  for (RunReader& reader : readers) {
    if (uses[reader.run().name] > 1) reader.rename(reader.run().path);
  }
  return readers;
}

}  // namespace metroplex::page
