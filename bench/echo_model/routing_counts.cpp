#include "echo_model/routing_counts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "files/json_text.h"

namespace metroplex::bench {
namespace {

constexpr std::array<const char*, 4> kColumns{"step", "layer", "expert", "count"};
// Limits of a run; they keep sums of counts below 2^63. kMaxCells limits the table in memory.
constexpr std::array<int64_t, 4> kMaxValues{1'000'000'000, 65535, 65535, 1'000'000'000'000};
constexpr size_t kMaxCells = size_t{1} << 28;

using Values = std::array<int64_t, 4>;  // in the order of kColumns

void check_range(size_t column, int64_t value, const std::string& where) {
  MPX_CHECK(value >= 0 && value <= kMaxValues[column], "files", where, ": '", kColumns[column], "' is ", value,
            "; 0 to ", kMaxValues[column], " is expected");
}

std::vector<std::string_view> split(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::vector<std::string_view> parts;
  for (size_t from = 0; from <= line.size();) {
    const size_t comma = std::min(line.find(',', from), line.size());
    parts.push_back(line.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

// Returns the column of kColumns for each field of a line.
std::vector<size_t> find_columns(const std::string& line, const std::string& where) {
  std::vector<size_t> columns;
  for (const std::string_view name : split(line)) {
    const auto found = std::find(kColumns.begin(), kColumns.end(), name);
    MPX_CHECK(found != kColumns.end(), "files", where, ": '", files::printable(name),
              "' is no column; the first line names step,layer,expert,count in any order");
    columns.push_back(static_cast<size_t>(found - kColumns.begin()));
  }
  const std::set<size_t> different(columns.begin(), columns.end());
  MPX_CHECK(columns.size() == kColumns.size() && different.size() == kColumns.size(), "files", where, ": ",
            columns.size(), " columns; step,layer,expert,count are expected, each once");
  return columns;
}

Values parse_csv(const std::string& line, const std::vector<size_t>& columns, const std::string& where) {
  const std::vector<std::string_view> fields = split(line);
  MPX_CHECK(fields.size() == columns.size(), "files", where, ": ", fields.size(), " fields; ", columns.size(),
            " are expected");
  Values values{};
  for (size_t i = 0; i < fields.size(); ++i) {
    int64_t& value = values[columns[i]];
    const char* const end = fields[i].data() + fields[i].size();
    const auto result = std::from_chars(fields[i].data(), end, value);
    MPX_CHECK(result.ec == std::errc() && result.ptr == end, "files", where, ": '", files::printable(fields[i]),
              "' is no whole number for '", kColumns[columns[i]], "'");
    check_range(columns[i], value, where);
  }
  return values;
}

Values parse_json(const std::string& line, const std::string& where) {
  const nlohmann::json json = files::parse_json_strictly(line, where);
  Values values{};
  for (size_t i = 0; i < kColumns.size(); ++i) {
    values[i] = files::json_count(json, kColumns[i], where);
    check_range(i, values[i], where);
  }
  MPX_CHECK(json.size() == kColumns.size(), "files", where, ": ", files::shortened(json),
            " has other members than step, layer, expert and count");
  return values;
}

using Cells = std::map<int64_t, std::map<std::pair<int64_t, int64_t>, int64_t>>;  // step -> {layer, expert} -> count

files::ExpertTrace make_trace(const Cells& cells, const std::string& path) {
  std::set<int64_t> layers;
  files::ExpertTrace trace;
  for (const auto& [step, counts] : cells) {
    for (const auto& [place, count] : counts) {
      layers.insert(place.first);
      trace.head.num_experts = std::max(trace.head.num_experts, place.second + 1);
    }
  }
  trace.head.layers.assign(layers.begin(), layers.end());
  const auto experts = static_cast<size_t>(trace.head.num_experts);
  MPX_CHECK(cells.size() * layers.size() <= kMaxCells / experts, "files", "'", path, "' has ", cells.size(),
            " steps, ", layers.size(), " layers and ", experts, " experts; more than ", kMaxCells,
            " counts in all are not read; split the file");
  for (const auto& [step, counts] : cells) {
    files::ExpertTraceStep& row = trace.steps.emplace_back();
    row.iteration = step;
    row.tokens.assign(layers.size() * experts, 0);
    row.dropped.assign(layers.size(), 0);
    for (const auto& [place, count] : counts) {
      const auto layer = static_cast<size_t>(std::distance(layers.begin(), layers.find(place.first)));
      row.tokens[layer * experts + static_cast<size_t>(place.second)] = count;
    }
  }
  return trace;
}

}  // namespace

files::ExpertTrace read_routing_counts(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  MPX_CHECK(stream.good(), "files", "cannot read the counts '", path, "'; check the path");
  Cells cells;
  std::vector<size_t> columns;
  std::string line;
  for (size_t number = 1; std::getline(stream, line); ++number) {
    const std::string where = base::concat("'", path, "' line ", number);
    const bool json = columns.empty() && line.starts_with('{');
    if (number == 1 && !json) {
      columns = find_columns(line, where);
      continue;
    }
    const Values values = columns.empty() ? parse_json(line, where) : parse_csv(line, columns, where);
    const bool added = cells[values[0]].insert({{values[1], values[2]}, values[3]}).second;
    MPX_CHECK(added, "files", where, ": step ", values[0], ", layer ", values[1], ", expert ", values[2],
              " was there before; give each once");
  }
  MPX_CHECK(!cells.empty(), "files", "'", path, "' has no counts");
  return make_trace(cells, path);
}

}  // namespace metroplex::bench
