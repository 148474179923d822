// Numbers with digit groups as in Python: 300_000_000.
#pragma once

#include <cctype>
#include <string>

namespace metroplex::base {

// Removes every underscore between two digits, like Python's int() and float().
inline std::string without_digit_groups(const std::string& text) {
  const auto is_digit = [&](size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]));
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) out += text[i];
  }
  return out;
}

}  // namespace metroplex::base
