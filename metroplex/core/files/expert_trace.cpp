#include "files/expert_trace.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>

#include "base/error.h"
#include "files/json_text.h"

namespace metroplex::files {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "expert_trace";
constexpr int64_t kVersion = 1;

std::string to_line(const ExpertTraceHead& head) {
  Json json = Json::object();
  json[kFormat] = kVersion;
  json["num_experts"] = head.num_experts;
  json["topk"] = head.topk;
  json["ep"] = head.ep;
  json["etp"] = head.etp;
  json["layers"] = head.layers;
  return json.dump();
}

// Limits of a run (config/moe_keys.inc), and of counts whose sums must stay below 2^63.
constexpr int64_t kMostExperts = 65536, kMostTokens = 1'000'000'000'000;

int64_t read_size(const Json& json, const char* key, const std::string& where) {
  const int64_t value = json_count(json, key, where);
  MPX_CHECK(value >= 1 && value <= kMostExperts, "files", where, ": '", key, "' is ", value, "; must be 1 to ",
            kMostExperts);
  return value;
}

ExpertTraceHead read_head(const std::string& line, const std::string& where) {
  const Json json = parse_json_strictly(line, where);
  const int64_t version = json_count(json, kFormat, where);
  MPX_CHECK(version == kVersion, "files", where, " is an expert trace of version ", version,
            "; the only supported version is ", kVersion);
  ExpertTraceHead head{read_size(json, "num_experts", where), read_size(json, "topk", where),
                       read_size(json, "ep", where), read_size(json, "etp", where),
                       json_counts(json, "layers", where)};
  MPX_CHECK(head.num_experts % head.ep == 0, "files", where, ": ", head.num_experts,
            " experts cannot be divided among ep = ", head.ep, " ranks");
  MPX_CHECK(!head.layers.empty(), "files", where, ": 'layers' is empty");
  MPX_CHECK(std::adjacent_find(head.layers.begin(), head.layers.end(), std::greater_equal<>()) == head.layers.end(),
            "files", where, ": 'layers' must name each layer once, in ascending order");
  return head;
}

void add_tokens(const Json& layer, const ExpertTraceHead& head, const std::string& where, std::vector<int64_t>& out) {
  const bool fits = layer.is_array() && static_cast<int64_t>(layer.size()) == head.sources();
  MPX_CHECK(fits, "files", where, ": a layer of 'tokens' must have ", head.sources(), " sources, not ",
            shortened(layer));
  for (const Json& source : layer) {
    const bool all = source.is_array() && static_cast<int64_t>(source.size()) == head.num_experts;
    MPX_CHECK(all, "files", where, ": a source of 'tokens' must have ", head.num_experts, " experts, not ",
              shortened(source));
    for (const Json& count : source) {
      MPX_CHECK(count.is_number_unsigned() && count.get<uint64_t>() <= uint64_t{kMostTokens}, "files", where, ": ",
                shortened(count), " in 'tokens' is not a count of at most ", kMostTokens);
      out.push_back(count.get<int64_t>());
    }
  }
}

ExpertTraceStep read_step(const std::string& line, const ExpertTraceHead& head, const std::string& where) {
  const Json json = parse_json_strictly(line, where);
  ExpertTraceStep step;
  step.iteration = json_count(json, "iteration", where);
  step.dropped = json_counts(json, "dropped", where);
  for (const int64_t dropped : step.dropped)
    MPX_CHECK(dropped <= kMostTokens, "files", where, ": ", dropped, " in 'dropped' is not a count of at most ",
              kMostTokens);
  const Json& tokens = json_array(json, "tokens", where);
  MPX_CHECK(tokens.size() == head.layers.size() && step.dropped.size() == head.layers.size(), "files", where,
            ": 'tokens' has ", tokens.size(), " layers, 'dropped' has ", step.dropped.size(), " and the head has ",
            head.layers.size());
  for (const Json& layer : tokens) add_tokens(layer, head, where, step.tokens);
  return step;
}

std::string to_line(const ExpertTraceStep& step, const ExpertTraceHead& head) {
  Json tokens = Json::array();
  auto at = step.tokens.begin();
  for (size_t layer = 0; layer < head.layers.size(); ++layer) {
    Json sources = Json::array();
    for (int64_t source = 0; source < head.sources(); ++source, at += head.num_experts)
      sources.push_back(std::vector<int64_t>(at, at + head.num_experts));
    tokens.push_back(sources);
  }
  return Json{{"iteration", step.iteration}, {"tokens", tokens}, {"dropped", step.dropped}}.dump();
}

std::string where(const std::string& path, size_t line) { return base::concat("'", path, "' line ", line); }

// The head of a file, if present, and the end of its last complete line.
struct Found {
  ExpertTraceHead head;
  size_t end = 0;
};

Found look_at(FileSystem& disk, const std::string& path) {
  Found found;
  if (disk.file_size(path).value_or(0) == 0) return found;
  const Bytes bytes = disk.map(path);
  const std::string_view text = bytes.text();
  const size_t first = text.find('\n');
  if (first == std::string_view::npos) return found;
  found.head = read_head(std::string(text.substr(0, first)), where(path, 1));
  found.end = text.rfind('\n') + 1;
  return found;
}

}  // namespace

int64_t ExpertTrace::tokens(const ExpertTraceStep& step, size_t layer, int64_t expert) const {
  int64_t sum = 0;
  for (int64_t source = 0; source < head.sources(); ++source) {
    const auto row = static_cast<int64_t>(layer) * head.sources() + source;
    sum += step.tokens[static_cast<size_t>(row * head.num_experts + expert)];
  }
  return sum;
}

ExpertTrace read_expert_trace(FileSystem& disk, const std::string& path) {
  MPX_CHECK(disk.file_size(path).has_value(), "files", "cannot read the expert trace '", path, "'; check the path");
  ExpertTrace trace;
  std::map<int64_t, ExpertTraceStep> steps;
  const Bytes bytes = disk.map(path);
  std::string_view rest = bytes.text();
  size_t number = 0;
  for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const std::string line(rest.substr(0, end)), here = where(path, ++number);
    rest.remove_prefix(end + 1);
    if (number == 1) {
      trace.head = read_head(line, here);
    } else {
      ExpertTraceStep step = read_step(line, trace.head, here);
      steps[step.iteration] = std::move(step);
    }
  }
  MPX_CHECK(number > 0, "files", "'", path, "' is not an expert trace: it has no complete line");
  for (auto& [iteration, step] : steps) trace.steps.push_back(std::move(step));
  return trace;
}

std::string find_expert_trace(FileSystem& disk, const std::string& run) {
  if (!disk.is_directory(run)) return run;
  constexpr size_t kBegin = 200;
  std::vector<std::string> found;
  for (const std::string& name : disk.list(run)) {
    const std::string path = join_path(run, name);
    if (disk.file_size(path).value_or(0) == 0) continue;
    const Bytes bytes = disk.map(path);
    if (bytes.text().substr(0, kBegin).find(std::string("\"") + kFormat + "\"") != std::string_view::npos)
      found.push_back(path);
  }
  // FILE.1, FILE.2, ... belong to earlier runs.
  std::erase_if(found, [all = found](const std::string& path) {
    const size_t dot = path.rfind('.');
    return dot != std::string::npos && path.find_first_not_of("0123456789", dot + 1) == std::string::npos &&
           std::find(all.begin(), all.end(), path.substr(0, dot)) != all.end();
  });
  MPX_CHECK(!found.empty(), "files", "'", run,
            "' contains no expert trace; set train.expert_trace_file when training, or pass the path of the file");
  MPX_CHECK(found.size() == 1, "files", "'", run, "' contains ", found.size(), " expert traces, including '",
            found[0], "' and '", found[1], "'; pass the path of one of them");
  return found[0];
}

void check_place_of_trace(FileSystem& disk, const std::string& path) {
  MPX_CHECK(disk.file_size(path).value_or(0) == 0 || look_at(disk, path).end > 0, "files", "'", path,
            "' is not an expert trace: it has no complete line; choose another train.expert_trace_file");
}

ExpertTraceWriter::ExpertTraceWriter(FileSystem& disk, const std::string& path, const ExpertTraceHead& head)
    : head_(head) {
  check_place_of_trace(disk, path);
  const Found found = look_at(disk, path);
  MPX_CHECK(found.end == 0 || found.head == head, "files", "'", path,
            "' is a trace with different experts, layers or ranks (", to_line(found.head),
            "; this run: ", to_line(head), "); choose another train.expert_trace_file");
  try {
    if (found.end > 0) disk.truncate(path, found.end);  // removes a partial line of a killed run
    file_ = disk.append(path);
    if (found.end == 0) file_->write(to_line(head) + "\n");
  } catch (const base::Error& error) {
    base::throw_error("files", base::concat("cannot write train.expert_trace_file '", path, "' (", error.what(),
                                            "); choose another path"));
  }
}

void ExpertTraceWriter::add(const ExpertTraceStep& step) {
  MPX_ASSERT(step.tokens.size() == head_.layers.size() * static_cast<size_t>(head_.sources() * head_.num_experts) &&
                 step.dropped.size() == head_.layers.size(),
             "the step does not have the shape that the head states");
  file_->write(to_line(step, head_) + "\n");
}

}  // namespace metroplex::files
