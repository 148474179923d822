// Joins strings with a separator.
#pragma once

#include <string>
#include <string_view>

namespace metroplex::base {

template <class Range>
std::string join(const Range& words, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& word : words) {
    if (!first) text += separator;
    text += word;
    first = false;
  }
  return text;
}

}  // namespace metroplex::base
