#include "config/parallel.h"

#include <algorithm>
#include <cctype>

namespace metroplex::config {

constexpr size_t kMaxLetters = 1 << 17;

// Reads "*n" at `at` and moves past it. Returns 1 without a repetition, and nothing if the number exceeds the limit.
static std::optional<size_t> repetition(const std::string& text, size_t& at) {
  if (at + 1 >= text.size() || text[at] != '*' || std::isdigit(static_cast<unsigned char>(text[at + 1])) == 0)
    return 1;
  size_t times = 0;
  for (++at; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0; ++at) {
    times = times * 10 + static_cast<size_t>(text[at] - '0');
    if (times > kMaxLetters) return std::nullopt;
  }
  return times;
}

// Unrolls "(...)*n" if `groups`, else "x*n". Each takes one pass, so groups cannot be nested.
static std::optional<std::string> unroll(const std::string& text, bool groups, std::string& problem) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    std::string unit(1, text[at++]);
    if (groups && unit == "(") {
      const size_t end = text.find(')', at);
      if (end == std::string::npos || end == at) {
        problem = end == at ? "() is empty" : "a ( is never closed";
        return std::nullopt;
      }
      unit = text.substr(at, end - at);
      at = end + 1;
      if (unit.find('(') != std::string::npos || at >= text.size() || text[at] != '*') {
        problem = unit.find('(') != std::string::npos ? "parentheses cannot nest" : "(...) needs a *n after it";
        return std::nullopt;
      }
    } else if (groups) {
      out += unit;
      continue;
    }
    const auto times = repetition(text, at);
    if (!times || out.size() + unit.size() * *times > kMaxLetters) {
      problem = "more than " + std::to_string(kMaxLetters) + " letters";
      return std::nullopt;
    }
    for (size_t i = 0; i < *times; ++i) out += unit;
  }
  return out;
}

std::optional<std::vector<std::string>> unrolled_layout(const std::string& layout, std::string& problem) {
  std::string text = layout;
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  auto flat = unroll(text, true, problem);
  if (flat) flat = unroll(*flat, false, problem);
  if (!flat) return std::nullopt;
  std::vector<std::string> stages(1);
  for (const char letter : *flat) {
    if (letter == '|') {
      stages.emplace_back();
    } else if (letter == 'E' || letter == 't' || letter == 'm' || letter == 'L') {
      stages.back() += letter;
    } else {
      problem = std::string("'") + letter + "' is none of E, t, L, |";
      return std::nullopt;
    }
  }
  return stages;
}

}  // namespace metroplex::config
