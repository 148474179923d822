// Filters for text layout and escaping.
#include "text/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

bool argument_is_true(const Arguments& arguments, size_t place, std::string_view name, bool fallback = false) {
  const Value* value = arguments.find(place, name);
  return value != nullptr ? value->truth() : fallback;
}

int64_t whole_argument(const Arguments& arguments, size_t place, std::string_view name, int64_t fallback) {
  const Value* value = arguments.find(place, name);
  MPX_CHECK(value == nullptr || value->is_integer(), "text", arguments.callee, ": ", name, " must be a whole number");
  return value != nullptr ? value->integer() : fallback;
}

std::string_view first_characters(std::string_view text, int64_t count) {
  size_t at = 0;
  for (; count > 0 && at < text.size(); --count) at += code_point_size(static_cast<unsigned char>(text[at]));
  return text.substr(0, at);
}

Value escape(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  return Value::safe_text(escaped_text(run, value));
}

Value force_escape(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  const std::string text = run.convert_text(value);
  run.charge_text(4 * text.size());
  return Value::safe_text(escaped(text));
}

Value xml_attributes(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(1, {"autospace"});
  MPX_CHECK(v.is_dict(), "text", "xmlattr: a ", type_name(v), " is not a dict");
  std::string out;
  for (const auto& [key, value] : v.dict().items()) {
    if (value.is(Kind::none) || value.is_undefined()) continue;
    MPX_CHECK(key.is_string() && key.string().find_first_of(" \t\n\r\f\v/>=") == std::string::npos, "text",
              "xmlattr: ", representation(key), " is not a valid attribute name");
    out += (out.empty() ? "" : " ") + escaped_text(run, key) + "=\"" + escaped_text(run, value) + "\"";
  }
  return run.text((!out.empty() && argument_is_true(arguments, 0, "autospace", true) ? " " : "") + out);
}

std::string quote_url(Interpreter& run, const Value& value, bool in_query) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  const std::string text = run.convert_text(value);
  run.charge_text(3 * text.size());
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view(in_query ? "_.-~" : "_.-~/").find(c) != std::string_view::npos;
    if (plain) out += c;
    else if (in_query && c == ' ') out += '+';
    else out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

Value url_encode(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(0);
  const bool has_pairs = v.is_dict() || v.is_list() || v.is(Kind::iterator) || v.is_undefined();
  if (!has_pairs) return run.text(quote_url(run, v, false));
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    out += (out.empty() ? "" : "&") + quote_url(run, key, true) + "=" + quote_url(run, value, true);
  };
  for_each_pair(run, v, "urlencode", add);
  return run.text(std::move(out));
}

Value center(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(1, {"width"});
  return text_like(
      value, pad_text(run, run.convert_text(value), whole_argument(arguments, 0, "width", 80), " ", Side::both));
}

Value truncate(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(4, {"length", "killwords", "end", "leeway"});
  MPX_CHECK(value.is_string() || value.is_undefined(), "text", "truncate: a ", type_name(value), " is not a str");
  const Value *end_argument = arguments.find(2, "end"), *leeway_argument = arguments.find(3, "leeway");
  const Value end = end_argument != nullptr ? *end_argument : Value("...");
  MPX_CHECK(end.is_string(), "text", "truncate: end must be a str");
  const int64_t length = whole_argument(arguments, 0, "length", 255);
  const auto end_length = static_cast<int64_t>(count_characters(end.string()));
  const bool default_leeway = leeway_argument == nullptr || leeway_argument->is(Kind::none);
  const int64_t leeway = default_leeway ? 5 : whole_argument(arguments, 3, "leeway", 5);
  MPX_CHECK(length >= end_length && leeway >= 0, "text", "truncate: the length is ", length, " and the leeway ",
            leeway, "; the length must be at least that of the end (", end_length, ") and the leeway at least 0");
  if (value.is_undefined()) return value;
  const std::string& text = value.string();
  const auto size = static_cast<int64_t>(count_characters(text));
  if (size - leeway <= length) return value;
  std::string_view truncated = first_characters(text, length - end_length);
  if (!argument_is_true(arguments, 1, "killwords")) truncated = truncated.substr(0, truncated.rfind(' '));
  return arithmetic(run, "+", text_like(value, std::string(truncated)), end);
}

// Python's textwrap.wrap on code points. A chunk is a word, a part of a hyphenated word, or white space.
class Wrapper {
 public:
  Wrapper(int64_t width, bool break_words, bool on_hyphens)
      : width_(static_cast<size_t>(width)), break_words_(break_words), on_hyphens_(on_hyphens) {}

  std::vector<std::string> lines(std::string_view text) {
    std::u32string points;
    for (size_t at = 0; at < text.size();) points += next_code_point(text, at);
    text_ = points;
    chunks_.clear();
    for (size_t at = 0, end = 0; at < text_.size(); at = end) {
      end = on_hyphens_ ? chunk_end(at) : simple_end(at);
      chunks_.push_back(Chunk(text_).substr(at, end - at));
    }
    std::reverse(chunks_.begin(), chunks_.end());
    std::vector<std::string> out;
    while (!chunks_.empty()) add_line(out);
    return out;
  }

 private:
  using Chunk = std::u32string_view;

  static bool is_blank(char32_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  static bool is_digit(char32_t c) { return std::string_view(general_category(c)) == "Nd"; }
  // Letter, word character or punctuation at an index that may be outside the text.
  bool letter(size_t at) const { return at < text_.size() && is_python_word(text_[at]) && !is_digit(text_[at]); }
  bool word(size_t at) const { return at < text_.size() && is_python_word(text_[at]); }
  bool word_or_mark(size_t at) const {
    return at < text_.size() && (word(at) || std::u32string_view(U"!\"'&.,?").find(text_[at]) != Chunk::npos);
  }
  bool hyphen(size_t at) const { return at < text_.size() && text_[at] == '-'; }

  // Returns the end of the hyphens from `at` on if they are a dash between words, else `at`.
  size_t dash_end(size_t at) const {
    size_t end = at;
    while (hyphen(end)) ++end;
    return at > 0 && word_or_mark(at - 1) && end >= at + 2 && word(end) ? end : at;
  }

  size_t simple_end(size_t at) const {
    const bool blank = is_blank(text_[at]);
    while (at < text_.size() && is_blank(text_[at]) == blank) ++at;
    return at;
  }

  size_t chunk_end(size_t begin) const {
    if (is_blank(text_[begin])) return simple_end(begin);
    if (const size_t dash = dash_end(begin); dash > begin) return dash;
    for (size_t at = begin + 1;; ++at) {
      const bool two_letters = at >= 2 && letter(at - 2) && letter(at - 1);
      const bool between = at >= 3 && letter(at - 3) && hyphen(at - 2) && word_or_mark(at - 1);
      const bool goes_on = letter(at + 1) && (letter(at + 2) || (hyphen(at + 2) && letter(at + 3)));
      if (hyphen(at) && (two_letters || between) && goes_on) return at + 1;
      if (at >= text_.size() || is_blank(text_[at]) || dash_end(at) > at) return at;
    }
  }

  static bool is_space_only(Chunk chunk) { return std::all_of(chunk.begin(), chunk.end(), is_space); }

  // Returns how many characters of a chunk longer than a line fit into the rest of this line.
  size_t find_break(Chunk chunk, size_t available) const {
    if (!on_hyphens_ || available == 0) return available;
    const size_t found = chunk.rfind(U'-', available - 1);
    const bool splits =
        found != Chunk::npos && found > 0 && chunk.substr(0, found).find_first_not_of(U'-') != Chunk::npos;
    return splits ? found + 1 : available;
  }

  void add_line(std::vector<std::string>& out) {
    std::vector<Chunk> line;
    size_t size = 0;
    if (!out.empty() && is_space_only(chunks_.back())) chunks_.pop_back();
    while (!chunks_.empty() && size + chunks_.back().size() <= width_) {
      size += chunks_.back().size();
      line.push_back(chunks_.back());
      chunks_.pop_back();
    }
    if (!chunks_.empty() && chunks_.back().size() > width_) {
      Chunk& next = chunks_.back();
      const size_t end = break_words_ ? find_break(next, width_ - size) : line.empty() ? next.size() : 0;
      if (break_words_ || line.empty()) line.push_back(next.substr(0, end));
      next.remove_prefix(end);
      if (next.empty()) chunks_.pop_back();
    }
    if (!line.empty() && is_space_only(line.back())) line.pop_back();
    if (line.empty()) return;
    std::string& text = out.emplace_back();
    for (const Chunk chunk : line) {
      for (const char32_t c : chunk) append_utf8(text, c);
    }
  }

  size_t width_;
  bool break_words_, on_hyphens_;
  std::u32string text_;
  std::vector<Chunk> chunks_;  // of the rest of the line, in reverse order
};

Value word_wrap(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(4, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  MPX_CHECK(value.is_string(), "text", "wordwrap: a ", type_name(value), " is not a str");
  const int64_t width = whole_argument(arguments, 0, "width", 79);
  MPX_CHECK(width > 0, "text", "wordwrap: the width is ", width, "; it must be at least 1");
  const Value* between = arguments.find(2, "wrapstring");
  const std::string wrap = between == nullptr || between->is(Kind::none) ? "\n" : run.convert_text(*between);
  Wrapper wrapper(width, argument_is_true(arguments, 1, "break_long_words", true),
                  argument_is_true(arguments, 3, "break_on_hyphens", true));
  run.charge(16 * value.string().size());
  std::string out;
  bool first = true;
  for (const std::string& line : split_lines(run, value.string())) {
    std::vector<std::string> wrapped = wrapper.lines(line);
    if (wrapped.empty()) wrapped.emplace_back();
    for (const std::string& one : wrapped) {
      run.charge_text(wrap.size() + one.size());
      out += (first ? "" : wrap) + one;
      first = false;
    }
  }
  return out;
}

constexpr struct {
  std::string_view name;
  Filter filter;
} kTextFilters[] = {{"center", center},      {"e", escape},
                    {"escape", escape},      {"forceescape", force_escape},
                    {"truncate", truncate},  {"urlencode", url_encode},
                    {"wordwrap", word_wrap}, {"xmlattr", xml_attributes}};

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '\'') out += "&#39;";
    else if (c == '"') out += "&#34;";
    else out += c;
  }
  return out;
}

std::string escaped_text(Interpreter& run, const Value& value) {
  std::string text = run.convert_text(value);
  if (value.is_safe()) return text;
  run.charge_text(4 * text.size());
  return escaped(text);
}

Value text_like(const Value& source, std::string text) {
  return source.is_safe() ? Value::safe_text(std::move(text)) : Value(std::move(text));
}

Filter find_text_filter(std::string_view name) {
  for (const auto& row : kTextFilters) {
    if (row.name == name) return row.filter;
  }
  return nullptr;
}

}  // namespace metroplex::text::jinja
