#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

bool name_begins(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Normalizes newlines to \n and removes the last one.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') out += source[i];
    else if (out += '\n'; i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where) : source_(normalize_newlines(source)), where_(where) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) between_tags();
    add(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { fail_at(where_, line_, message); }
  bool starts_with(std::string_view what) const { return source_.compare(at_, what.size(), what) == 0; }
  void add(TokenKind kind, std::string text = "") { tokens_.push_back({kind, line_, std::move(text), {}}); }
  void go(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_begins_ = to > at_ ? source_[to - 1] == '\n' : line_begins_;
    at_ = to;
  }
  size_t skip_space(size_t at) const {
    return source_.size() - strip_leading_space(std::string_view(source_).substr(at)).size();
  }

  // Reads the text up to the next tag, and the tag.
  void between_tags() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(TokenKind::text, source_.substr(at_));
        return go(source_.size());
      }
      if (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const size_t inside = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    add_text(std::string_view(source_).substr(at_, tag - at_), sign, kind != '{');
    go(inside);
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    add(kind == '%' ? TokenKind::open_block : TokenKind::open_output);
    kind == '%' ? in_tag("%}", TokenKind::close_block) : in_tag("}}", TokenKind::close_output);
  }

  void add_text(std::string_view text, char sign, bool strips_line) {
    if (sign == '-') {
      text = strip_trailing_space(text);
    } else if (sign != '+' && strips_line) {
      const size_t newline = text.rfind('\n'), begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_begins_) && strip_leading_space(text.substr(begin)).empty())
        text = text.substr(0, begin);
    }
    if (!text.empty()) add(TokenKind::text, std::string(text));
  }

  // Returns the position after the end `end` of a block or comment of `size` letters, and after the white space that
  // its sign removes.
  size_t skip_end(size_t end, size_t size, char sign) const {
    const size_t behind = end + size;
    if (sign == '-') return skip_space(behind);
    return sign != '+' && behind < source_.size() && source_[behind] == '\n' ? behind + 1 : behind;
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment {# has no closing #}");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    go(skip_end(end, 2, sign));
  }

  // Reads {% raw %} ... {% endraw %}, from inside the first tag; returns false for another tag.
  bool raw() {
    size_t at = skip_space(at_);
    if (source_.compare(at, 3, "raw") != 0) return false;
    at = skip_space(at + 3);
    const bool strips = at < source_.size() && source_[at] == '-';
    if (source_.compare(at + (strips ? 1 : 0), 2, "%}") != 0) return false;
    at += strips ? 3 : 2;
    go(strips ? skip_space(at) : at);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      size_t end = skip_space(tag + (sign == '-' || sign == '+' ? 3 : 2));
      if (source_.compare(end, 6, "endraw") != 0) continue;
      end = skip_space(end + 6);
      const char close = end < source_.size() ? source_[end] : ' ';
      if (close == '-' || close == '+') ++end;
      if (source_.compare(end, 2, "%}") != 0) continue;
      add_text(std::string_view(source_).substr(at_, tag - at_), sign, true);
      go(skip_end(end, 2, close));
      return true;
    }
    fail("{% raw %} has no {% endraw %}");
  }

  void in_tag(std::string_view close, TokenKind kind) {
    std::string open;  // open brackets
    while (true) {
      if (at_ >= source_.size()) fail(base::concat("a tag has no closing ", close));
      if (open.empty()) {
        const char sign = source_[at_];
        const size_t signs = sign == '-' || (sign == '+' && kind == TokenKind::close_block) ? 1 : 0;
        if (source_.compare(at_ + signs, 2, close) == 0) {
          add(kind);
          if (kind == TokenKind::close_block) return go(skip_end(at_ + signs, 2, signs ? sign : ' '));
          return go(signs ? skip_space(at_ + 3) : at_ + 2);
        }
      }
      const size_t behind = skip_space(at_);
      if (behind > at_) go(behind);
      else token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    if (name_begins(c)) {
      size_t end = at_;
      while (end < source_.size() && (name_begins(source_[end]) || is_digit(source_[end]))) ++end;
      add(TokenKind::name, source_.substr(at_, end - at_));
      return go(end);
    }
    static constexpr std::string_view kSigns[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                  "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                  ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* sign =
        std::find_if(std::begin(kSigns), std::end(kSigns), [&](std::string_view s) { return starts_with(s); });
    if (sign == std::end(kSigns))
      fail("unexpected character '" + source_.substr(at_, code_point_size(static_cast<unsigned char>(c))) + "'");
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(base::concat("unexpected '", c, "'"));
      open.pop_back();
    }
    add(TokenKind::sign, std::string(*sign));
    go(at_ + sign->size());
  }

  void number() {
    size_t end = at_;
    std::string digits;
    const auto take_digits = [&](auto is_one) {
      while (end < source_.size() && (is_one(source_[end]) || (source_[end] == '_' && end + 1 < source_.size() &&
                                                               is_one(source_[end + 1])))) {
        if (source_[end] != '_') digits += source_[end];
        ++end;
      }
    };
    int base = 10;
    bool real = false;
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      const char letter = static_cast<char>(source_[at_ + 1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    if (base != 10) end += 2;
    take_digits([&](char c) {
      const int value = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 99;
      return value < base;
    });
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (base == 10 && !after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        real = true;
        digits += source_[end++];
        take_digits(is_digit);
      }
      size_t exponent = end;
      if (exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
        if (++exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          real = true;
          digits.append(source_, end, exponent - end);
          end = exponent;
          take_digits(is_digit);
        }
      }
    }
    add(TokenKind::number);
    const char* last = digits.data() + digits.size();
    double number = 0;
    int64_t whole = 0;
    const auto read =
        real ? std::from_chars(digits.data(), last, number) : std::from_chars(digits.data(), last, whole, base);
    if (read.ec != std::errc() || read.ptr != last)
      fail("the number " + source_.substr(at_, end - at_) + " does not fit in 64 bits");
    tokens_.back().number = real ? Value(number) : Value(whole);
    go(end);
  }

  void string(char quote) {
    std::string out;
    size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote;) {
      if (source_[at] == '\\' && at + 1 < source_.size()) escape(at, out);
      else out += source_[at++];
    }
    if (at >= source_.size()) fail("a string has no closing quote");
    add(TokenKind::string, std::move(out));
    go(at + 1);
  }

  void escape(size_t& at, std::string& out) const {
    const char c = source_[at + 1];
    static constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kLetters.find(c); simple != std::string_view::npos) {
      out += kMeaning[simple];
      at += 2;
    } else if (c == '\n') {
      at += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      code_point(at, c == 'x' ? 2 : c == 'u' ? 4 : 8, 2, 16, out);
    } else if (c >= '0' && c <= '7') {
      size_t digits = 1;
      while (digits < 3 && at + 1 + digits < source_.size() && source_[at + 1 + digits] >= '0' &&
             source_[at + 1 + digits] <= '7')
        ++digits;
      code_point(at, digits, 1, 8, out);
    } else {
      if (c == 'N') fail("\\N{...} in a string is not supported; write the character");
      out += source_[at++];
    }
  }

  void code_point(size_t& at, size_t digits, size_t lead, int base, std::string& out) const {
    uint32_t code = 0;
    const size_t begin = at + lead;
    const char *first = source_.data() + std::min(begin, source_.size()),
               *last = source_.data() + std::min(begin + digits, source_.size());
    const auto read = std::from_chars(first, last, code, base);
    const bool whole = read.ec == std::errc() && read.ptr == first + digits;
    if (!whole || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      fail("an escape in a string is not a character: " + source_.substr(at, lead + digits));
    append_utf8(out, code);
    at = begin + digits;
  }

  std::string source_;
  const std::string& where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // the previous output ended with a newline
};

}  // namespace

void fail_at(const std::string& where, int line, const std::string& message) {
  base::throw_error("text", base::concat(where, ", line ", line, ": ", message));
}

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view strip_leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    size_t next = at;
    if (!is_space(next_code_point(text, next))) break;
    at = next;
  }
  return text.substr(at);
}

std::string_view strip_trailing_space(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    size_t at = begin;
    if (!is_space(next_code_point(text, at))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::vector<Token> template_tokens(std::string_view source, const std::string& where) {
  const size_t bad = valid_utf8_prefix(source);
  MPX_CHECK(bad == source.size(), "text", where, ": byte ", bad, " is not UTF-8");
  return Lexer(source, where).run();
}

}  // namespace metroplex::text::jinja
