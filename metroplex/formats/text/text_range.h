// Positions in a text, and the origin of each byte of a rewritten text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::text {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
};

// Has one entry per byte of a rewritten text: the input byte of the corresponding character. It is kNoSource for text
// that is inserted at the start of an empty range.
using Sources = std::vector<size_t>;
constexpr size_t kNoSource = ~size_t{0};

// Appends `added`, which replaces the character at byte `source` of the input. `sources` may be null.
inline void append_from(std::string& out, Sources* sources, std::string_view added, size_t source) {
  out.append(added);
  if (sources) sources->resize(out.size(), source);
}

// Appends bytes [begin, end) of the input unchanged.
inline void append_unchanged(std::string& out, Sources* sources, std::string_view input, TextRange range) {
  out.append(input.substr(range.begin, range.end - range.begin));
  for (size_t at = range.begin; sources && at < range.end; ++at) sources->push_back(at);
}

// Returns the characters of valid UTF-8 `text` that correspond to bytes [begin, end) of a rewritten text.
TextRange original_range(std::string_view text, const Sources& sources, TextRange rewritten);

}  // namespace metroplex::text
