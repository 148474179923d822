#include "page/run_line.h"

#include <charconv>
#include <limits>

namespace metroplex::page {
namespace {

constexpr double kNull = std::numeric_limits<double>::quiet_NaN();
constexpr double kMostIterations = 9007199254740992;  // 2^53, exact as a double, which the page stores

// Reads the tokens of a flat object from left to right.
struct Scanner {
  const char* at;
  const char* end;

  void skip_spaces() {
    while (at != end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
  }
  bool accept(char letter) {
    skip_spaces();
    if (at == end || *at != letter) return false;
    ++at;
    return true;
  }
  bool accept(std::string_view word) {
    if (!std::string_view(at, static_cast<size_t>(end - at)).starts_with(word)) return false;
    at += word.size();
    return true;
  }
  // A string without escapes and control characters.
  bool read(std::string_view& text) {
    if (!accept('"')) return false;
    const char* const begin = at;
    while (at != end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 0x20 &&
           static_cast<unsigned char>(*at) < 0x80)
      ++at;
    text = {begin, static_cast<size_t>(at - begin)};
    return at != end && *at++ == '"';
  }
  bool read(double& value) {
    const bool is_number = at != end && (*at == '-' || (*at >= '0' && *at <= '9'));
    if (!is_number) return false;
    const auto [stop, error] = std::from_chars(at, end, value);
    at = stop;
    return error == std::errc() && value - value == 0;  // not -inf
  }
};

}  // namespace

void RunLine::add(std::string_view name, double value) {
  if (name == "iteration" && value >= 0 && value <= kMostIterations) {
    iteration = static_cast<int64_t>(value);
    return;
  }
  if (count == numbers.size()) numbers.emplace_back();
  numbers[count].first = name;
  numbers[count++].second = value;
}

bool RunLine::parse_flat(std::string_view text) {
  Scanner scanner{text.data(), text.data() + text.size()};
  if (!scanner.accept('{')) return false;
  std::string_view name, word;
  double value = 0;
  do {
    scanner.skip_spaces();
    if (!scanner.read(name) || !scanner.accept(':')) return false;
    scanner.skip_spaces();
    if (scanner.read(value)) add(name, value);
    else if (scanner.accept("null")) add(name, kNull);
    else if (scanner.accept("true")) skipped |= name == "skipped";
    else if (scanner.accept("false")) continue;
    else if (!scanner.read(word)) return false;
    else if (name == "split") split = word;
  } while (scanner.accept(','));
  if (!scanner.accept('}')) return false;
  scanner.skip_spaces();
  return scanner.at == scanner.end;
}

bool RunLine::parse_json(std::string_view text) {
  json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return false;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number()) add(name, value.get<double>());
    else if (value.is_null()) add(name, kNull);
    else if (name == "skipped" && value.is_boolean()) skipped = value.get<bool>();
    else if (name == "split" && value.is_string()) split = value.get<std::string>();
  }
  return true;
}

bool RunLine::parse(std::string_view text) {
  const auto clear = [&] {
    iteration.reset();
    count = 0;
    split.clear();
    skipped = false;
    json = nullptr;
  };
  clear();
  if (parse_flat(text)) return true;
  clear();
  return parse_json(text);
}

}  // namespace metroplex::page
