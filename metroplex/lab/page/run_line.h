// Parses one line of a metrics file. Files have millions of lines of numbers, so those take a path without a JSON
// tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace metroplex::page {

using Json = nlohmann::ordered_json;

struct RunLine {
  std::optional<int64_t> iteration;
  std::vector<std::pair<std::string, double>> numbers;  // only the first `count` belong to the line; NaN: null
  size_t count = 0;
  std::string split;  // of an evaluation
  bool skipped = false;
  Json json;  // the complete line if it has more than numbers, flags and plain strings; else null

  // Returns false if `text` is not a JSON object. Reuses the memory of the previous line.
  bool parse(std::string_view text);

 private:
  bool parse_flat(std::string_view text);
  bool parse_json(std::string_view text);
  void add(std::string_view name, double value);
};

}  // namespace metroplex::page
