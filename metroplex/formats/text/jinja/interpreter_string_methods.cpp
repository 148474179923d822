// Python's methods of str.
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <tuple>

#include <utf8proc.h>

#include "base/error.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

template <class Map>
std::string map_characters(std::string_view text, Map map) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_utf8(out, map(next_code_point(text, at)));
  return out;
}

char32_t to_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t to_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t to_title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }
bool is_letter(char32_t c) { return general_category(c)[0] == 'L'; }
bool is_cased(char32_t c) { return to_lower(c) != c || to_upper(c) != c; }
bool is_decimal(char32_t c) { return std::string_view(general_category(c)) == "Nd"; }

template <class Holds>
bool all_of(std::string_view text, Holds holds) {
  for (size_t at = 0; at < text.size();) {
    if (!holds(next_code_point(text, at))) return false;
  }
  return !text.empty();
}

// Returns the first or last run of white space; {npos, ...} if there is none.
std::pair<size_t, size_t> space_in(std::string_view text, bool last) {
  if (last) {
    while (!text.empty()) {
      const size_t end = text.size();
      if (const size_t begin = strip_trailing_space(text).size(); begin < end) return {begin, end};
      while (text.size() > 1 && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.remove_suffix(1);
      text.remove_suffix(1);
    }
    return {std::string_view::npos, 0};
  }
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (is_space(next_code_point(text, at)))
      return {begin, text.size() - strip_leading_space(text.substr(at)).size()};
  }
  return {std::string_view::npos, 0};
}

// str.split by a separator or, for None, by runs of white space.
List split(Interpreter& run, std::string_view text, const Value* separator, int64_t limit, bool from_right) {
  List parts;
  const bool spaces = separator == nullptr || separator->is(Kind::none);
  const std::string by = spaces ? "" : run.convert_text(*separator);
  MPX_CHECK(spaces || !by.empty(), "text", "cannot split a str at an empty separator");
  if (spaces) text = from_right ? strip_trailing_space(text) : strip_leading_space(text);
  const Search search(run, by, from_right);
  while (!text.empty() || !spaces) {
    size_t begin = std::string_view::npos, end = 0;
    if (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      if (spaces) std::tie(begin, end) = space_in(text, from_right);
      else begin = search.in(text), end = begin + by.size();
    }
    run.charge_items(1);
    if (begin == std::string_view::npos) {
      parts.emplace_back(text);
      break;
    }
    parts.emplace_back(from_right ? text.substr(end) : text.substr(0, begin));
    text = from_right ? text.substr(0, begin) : text.substr(end);
    if (spaces && from_right && text.empty()) break;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

// text[start:end] for the arguments from `place` on; `start` is in characters.
struct Window {
  std::string text;
  int64_t start = 0;
  bool is_inside = true;  // false: it starts after the end of the text, where not even "" is found
};

Window window(Interpreter& run, const std::string& text, const Arguments& arguments, size_t place) {
  if (arguments.positional.size() <= place) return {text};
  const Value &start = arguments.positional[place],
              end = arguments.positional.size() > place + 1 ? arguments.positional[place + 1] : None{};
  const auto size = static_cast<int64_t>(count_characters(text));
  Window out{slice(run, text, start, end, None{}).string()};
  if (start.is_integer())
    out.start = start.integer() < 0 ? std::max<int64_t>(start.integer() + size, 0) : start.integer();
  out.is_inside = out.start <= size;
  return out;
}

bool begins_or_ends(Interpreter& run, const std::string& text, const Value& with, bool begins) {
  run.charge(with.is_string() ? with.string().size() / 16 : 1);
  if (with.is(Kind::tuple))
    return std::any_of(with.items().begin(), with.items().end(),
                       [&](const Value& value) { return begins_or_ends(run, text, value, begins); });
  MPX_CHECK(with.is_string(), "text", begins ? "startswith" : "endswith", " takes a str, not a ", type_name(with));
  return begins ? text.starts_with(with.string()) : text.ends_with(with.string());
}

int64_t find(Interpreter& run, const std::string& whole, const Arguments& arguments, bool last, bool must) {
  arguments.only(3);
  const std::string& part = arguments.need(0, "sub").string();
  const Window in = window(run, whole, arguments, 1);
  const size_t at = in.is_inside ? Search(run, part, last).in(in.text) : std::string::npos;
  MPX_CHECK(at != std::string::npos || !must, "text", "the substring was not found");
  if (at == std::string::npos) return -1;
  return in.start + static_cast<int64_t>(count_characters(std::string_view(in.text).substr(0, at)));
}

int64_t count(Interpreter& run, const std::string& whole, const std::string& part, const Arguments& arguments) {
  arguments.only(3);
  const Window in = window(run, whole, arguments, 1);
  if (!in.is_inside) return 0;
  int64_t found = part.empty() ? static_cast<int64_t>(count_characters(in.text)) + 1 : 0;
  const Search search(run, part);
  for (std::string_view rest = in.text; !part.empty(); ++found) {
    const size_t at = search.in(rest);
    if (at == std::string_view::npos) break;
    rest.remove_prefix(at + part.size());
  }
  return found;
}

// str.format with {}, {0} and {name}.
std::string format_braces(Interpreter& run, const std::string& text, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
      out += text[at++];
      continue;
    }
    MPX_CHECK(c != '}', "text", "format: a } has no {");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = text.find('}', at);
    MPX_CHECK(end != std::string::npos, "text", "format: a { has no }");
    const std::string name = text.substr(at + 1, end - at - 1);
    const bool digits = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos && name.size() < 4;
    const bool plain = name.find_first_of(":!.[{") == std::string::npos;
    MPX_CHECK(plain, "text", "format: '{", name, "}' is not supported; use {}, {0} or {name}");
    const Value* value = digits || name.empty()
                             ? arguments.find(digits ? static_cast<size_t>(std::stoi(name)) : next++, "")
                             : arguments.find(SIZE_MAX, name);
    MPX_CHECK(value != nullptr, "text", "format: there is no value for '{", name, "}'");
    run.charge(arguments.named.size());
    out += run.convert_text(*value);
    at = end;
  }
  return out;
}

Value part(Interpreter& run, const std::string& text, const Value& separator, bool last) {
  MPX_CHECK(separator.is_string() && !separator.string().empty(), "text", "partition needs a separator");
  const size_t at = Search(run, separator.string(), last).in(text);
  run.charge(text.size() / 4);
  if (at == std::string::npos) return last ? Value::tuple({"", "", text}) : Value::tuple({text, "", ""});
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.string().size())});
}

constexpr std::string_view kNames[] = {
    "capitalize",   "count",        "endswith",  "find",      "format",     "index",  "isalnum",  "isalpha",
    "isdigit",      "islower",      "isspace",   "isupper",   "join",       "lower",  "lstrip",   "partition",
    "removeprefix", "removesuffix", "replace",   "rfind",     "rpartition", "rsplit", "rstrip",   "split",
    "splitlines",   "startswith",   "strip",     "title",     "upper",      "zfill",  "casefold", "swapcase",
    "center",       "isascii",      "isdecimal", "isnumeric", "ljust",      "rindex", "rjust"};

Value question(const std::string& text, std::string_view name) {
  const auto letter_or_digit = [](char32_t c) { return is_letter(c) || general_category(c)[0] == 'N'; };
  const auto any_cased = [&] { return !all_of(text, [](char32_t c) { return !is_cased(c); }) && !text.empty(); };
  if (name == "isalnum") return all_of(text, letter_or_digit);
  if (name == "isalpha") return all_of(text, is_letter);
  if (name == "isascii") return is_ascii(text);
  if (name == "isdigit" || name == "isdecimal") return all_of(text, is_decimal);
  if (name == "isnumeric") return all_of(text, [](char32_t c) { return general_category(c)[0] == 'N'; });
  if (name == "isspace") return all_of(text, is_space);
  if (name == "islower") return any_cased() && all_of(text, [](char32_t c) { return to_lower(c) == c; });
  return any_cased() && all_of(text, [](char32_t c) { return to_upper(c) == c; });
}

}  // namespace

bool has_string_method(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::vector<std::string_view> split_characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = code_point_size(static_cast<unsigned char>(text[at]));
    out.push_back(text.substr(at, size));
    at += size;
  }
  return out;
}

bool is_python_word(char32_t c) {
  const char category = general_category(c)[0];
  return category == 'L' || category == 'N' || c == '_';
}

std::string pad_text(Interpreter& run, const std::string& text, int64_t width, std::string_view fill, Side side) {
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  const auto size = static_cast<int64_t>(count_characters(text));
  if (width <= size) return text;
  MPX_CHECK(count_characters(fill) == 1, "text", "the fill character '", fill, "' must be one character");
  MPX_CHECK(width <= kMaxWidth, "text", "the width of ", width, " characters exceeds the maximum of ", kMaxWidth);
  const int64_t missing = width - size;
  // str.center puts the odd character on the left if the width is odd.
  const int64_t left = side == Side::left ? missing : side == Side::both ? missing / 2 + (missing & width & 1) : 0;
  run.charge_text(text.size() + static_cast<size_t>(missing) * fill.size());
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0xdf) out += "SS";
    else append_utf8(out, to_upper(c));
  }
  return out;
}

std::string lower(std::string_view text) { return map_characters(text, to_lower); }

std::string capitalize(std::string_view text) {
  size_t at = 0;
  std::string out;
  if (!text.empty()) append_utf8(out, to_title(next_code_point(text, at)));
  return out + lower(text.substr(at));
}

// A word begins after any non-letter (str.title), or only after white space and -({[< (the filter title).
std::string title(std::string_view text, bool after_any_other) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    append_utf8(out, begins ? to_title(c) : to_lower(c));
    const bool opener = c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    begins = after_any_other ? !is_cased(c) : opener || is_space(c);
  }
  return out;
}

std::string strip(Interpreter& run, std::string_view text, const Value* characters, bool left, bool right) {
  if (characters == nullptr || characters->is(Kind::none)) {
    if (left) text = strip_leading_space(text);
    return std::string(right ? strip_trailing_space(text) : text);
  }
  const std::string& set = characters->string();
  run.charge(16 * set.size());
  auto chosen = split_characters(set);
  std::sort(chosen.begin(), chosen.end());
  const auto in = [&](std::string_view c) { return std::binary_search(chosen.begin(), chosen.end(), c); };
  while (left && !text.empty()) {
    const size_t size = code_point_size(static_cast<unsigned char>(text[0]));
    if (!in(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!in(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return std::string(text);
}

std::string replace_text(Interpreter& run, std::string_view text, std::string_view from, std::string_view to,
                         int64_t count) {
  const Search search(run, from);
  std::string out;
  size_t at = 0;
  run.charge_text(text.size());
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t found = from.empty() ? 0 : search.in(text.substr(at));
    if (found == std::string_view::npos) break;
    run.charge_text(to.size() + 4);
    out.append(text, at, found);
    out += to;
    at += found + from.size();
    if (!from.empty()) continue;  // an empty `from` matches before every character and at the end
    if (at >= text.size()) return out;
    const size_t size = code_point_size(static_cast<unsigned char>(text[at]));
    out.append(text, at, size);
    at += size;
  }
  return out.append(text.substr(at));
}

std::vector<std::string> split_lines(Interpreter& run, std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_code_point(text, at);
    const bool ends = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    run.charge_items(1);
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.emplace_back(text.substr(begin, (keep_ends ? at : here) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

Value call_string_method(Interpreter& run, const std::string& text, const std::string& name, Arguments& arguments) {
  run.charge(text.size() / 4);
  const auto string_at = [&](size_t place, const char* what) -> const std::string& {
    const Value& value = arguments.need(place, what);
    MPX_CHECK(value.is_string(), "text", arguments.callee, " takes a str, not a ", type_name(value));
    return value.string();
  };
  const auto count_at = [&](size_t place, const char* what) {
    const Value* value = arguments.find(place, what);
    MPX_CHECK(value == nullptr || value->is_integer(), "text", arguments.callee, ": ", what,
              " must be a whole number");
    return value != nullptr ? value->integer() : -1;
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    arguments.only(1);
    const Value* set = arguments.find(0, "chars");
    if (set != nullptr && !set->is(Kind::none)) string_at(0, "chars");
    return strip(run, text, set, name != "rstrip", name != "lstrip");
  }
  if (name == "split" || name == "rsplit") {
    arguments.only(2, {"sep", "maxsplit"});
    return run.list(split(run, text, arguments.find(0, "sep"), count_at(1, "maxsplit"), name == "rsplit"));
  }
  if (name == "startswith" || name == "endswith") {
    arguments.only(3);
    const Window in = window(run, text, arguments, 1);
    return begins_or_ends(run, in.text, arguments.need(0, "prefix"), name == "startswith") && in.is_inside;
  }
  if (name == "replace") {
    arguments.only(3, {"count"});
    return replace_text(run, text, string_at(0, "old"), string_at(1, "new"), count_at(2, "count"));
  }
  if (name == "join") {
    arguments.only(1);
    std::string out;
    bool first = true;
    for (const Value& value : elements(run, arguments.need(0, "iterable"))) {
      MPX_CHECK(value.is_string(), "text", "join: an item is a ", type_name(value), ", not a str");
      run.charge_text(text.size() + value.string().size());
      if (!first) out += text;
      out += value.string();
      first = false;
    }
    return out;
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    string_at(0, "sub");
    return find(run, text, arguments, name.starts_with('r'), name.ends_with("index"));
  }
  if (name == "center" || name == "ljust" || name == "rjust") {
    arguments.only(2);
    const int64_t width =
        arguments.need(0, "width").is_integer() ? arguments.need(0, "width").integer() : count_at(0, "width");
    const std::string fill = arguments.find(1, "fillchar") != nullptr ? string_at(1, "fillchar") : " ";
    return pad_text(run, text, width, fill,
                    name == "ljust"   ? Side::right
                    : name == "rjust" ? Side::left
                                      : Side::both);
  }
  if (name == "count") return count(run, text, string_at(0, "sub"), arguments);
  if (name == "format") return run.text(format_braces(run, text, arguments));
  if (name == "partition" || name == "rpartition")
    return part(run, text, arguments.need(0, "sep"), name == "rpartition");
  if (name == "removeprefix")
    return text.starts_with(string_at(0, "prefix")) ? text.substr(string_at(0, "prefix").size()) : text;
  if (name == "removesuffix")
    return text.ends_with(string_at(0, "suffix")) ? text.substr(0, text.size() - string_at(0, "suffix").size())
                                                  : text;
  if (name == "zfill") {
    const int64_t width = count_at(0, "width"), size = static_cast<int64_t>(count_characters(text));
    MPX_CHECK(width <= 1000, "text", "zfill: the width is ", width, "; the maximum is 1000");
    const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
    return text.substr(0, sign) + std::string(static_cast<size_t>(std::max<int64_t>(width - size, 0)), '0') +
           text.substr(sign);
  }
  if (name == "splitlines") {
    arguments.only(1, {"keepends"});
    const Value* ends = arguments.find(0, "keepends");
    List lines;
    for (std::string& line : split_lines(run, text, ends != nullptr && ends->truth()))
      lines.emplace_back(std::move(line));
    return run.list(std::move(lines));
  }
  arguments.only(0);
  if (name == "upper") return upper(text);
  if (name == "lower" || name == "casefold") return lower(text);
  if (name == "capitalize") return capitalize(text);
  if (name == "title") return title(text, true);
  if (name == "swapcase")
    return map_characters(text, [](char32_t c) { return to_lower(c) != c ? to_lower(c) : to_upper(c); });
  return question(text, name);
}

}  // namespace metroplex::text::jinja
