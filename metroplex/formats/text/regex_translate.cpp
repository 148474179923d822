#include "text/regex.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace metroplex::text {
namespace {

constexpr const char* kCircledLetters =
    "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
// Oniguruma's \w also matches these outside classes.
constexpr const char* kLatinNumbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr const char* kHexDigits = "0-9a-fA-F";
constexpr const char* kSpaces = "\\t-\\r\\x{85}\\p{Z}";
// Characters that are Alphabetic or Lowercase since Unicode 15 or 16, without those of category_updates().
constexpr const char* kNewAlphabetic =
    "\\x{363}-\\x{36f}\\x{897}\\x{c04}\\x{cf3}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}\\x{10d69}\\x{10efc}\\x{11080}"
    "\\x{11081}\\x{11241}\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}\\x{113cd}"
    "\\x{11f00}\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f40}\\x{1611e}-\\x{1612e}\\x{1e08f}";
constexpr const char* kNewLowercase = "\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{1e030}-\\x{1e06d}";
constexpr int kMaxClassDepth = 16;

class Translator {
 public:
  Translator(std::string_view pattern, bool updated) : pattern_(pattern), updated_(updated) {}

  std::string run() {
    std::string out;
    std::vector<size_t> groups;  // begins of the open groups in `out`
    size_t atom = 0;             // begin of the last atom in `out`, which a repeat applies to
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (const std::string_view text = repeat(); !text.empty()) {
        add_repeat(text, atom, out);
        continue;
      }
      const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
      if (c == ')' && !groups.empty()) {
        atom = groups.back();
        groups.pop_back();
      } else if (!continues && c != '*' && c != '+' && c != '?') {
        atom = out.size();
      }
      if (c == '(') groups.push_back(atom);
      out += c == '\\' ? escape(nullptr) : c == '[' ? outer_class() : c == '(' ? group() : std::string(1, c);
      if (c != '\\' && c != '[' && c != '(') ++at_;
    }
    return out;
  }

 private:
  // A character class: items and patterns of further characters, or classes that must all match (&&).
  struct Class {
    bool negated = false;
    std::string items;
    std::vector<std::string> others;
    std::vector<Class> also;

    std::string as_pattern() const {
      if (also.empty() && others.empty()) return (negated ? "[^" : "[") + items + "]";
      std::string one;
      for (const Class& operand : also) one += "(?=" + operand.as_pattern() + ")";
      if (!also.empty()) one += "(?s:.)";
      if (!items.empty()) one += "[" + items + "]";
      for (const std::string& other : others) one += (one.empty() ? "" : "|") + other;
      return negated ? "(?:(?!" + one + ")(?s:.))" : "(?:" + one + ")";
    }
  };

  // Returns the repeat "{n}", "{n,}", "{,m}" or "{n,m}" at at_; "" if there is none.
  std::string_view repeat() const {
    const size_t end = peek('{') ? pattern_.find('}', at_) : std::string_view::npos;
    if (end == std::string_view::npos) return {};
    const std::string_view counts = pattern_.substr(at_ + 1, end - at_ - 1);
    const bool any = counts.find_first_of("0123456789") != std::string_view::npos,
               all = counts.find_first_not_of("0123456789,") == std::string_view::npos;
    return any && all && counts.find(',') == counts.rfind(',') ? pattern_.substr(at_, end + 1 - at_)
                                                               : std::string_view();
  }

  // PCRE2 reads {,m} as text, x{n,m}+ as possessive and x{n}? as lazy. Oniguruma reads them as {0,m}, (?:x{n,m})+ and
  // (?:x{n})?.
  void add_repeat(std::string_view repeat, size_t atom, std::string& out) {
    std::string text(repeat);
    if (text[1] == ',') text.insert(1, "0");
    at_ += repeat.size();
    out += text;
    const bool lazy = peek('?') && text.find(',') != std::string::npos;
    if (lazy || at_ >= pattern_.size() || std::string_view("+?*{").find(pattern_[at_]) == std::string_view::npos)
      return;
    out.insert(atom, "(?:");
    out += ")";
  }

  // In Oniguruma the option m lets the dot match newlines, as PCRE2's s does.
  std::string group() {
    const size_t end = pattern_.find_first_not_of("imsx-", std::min(at_ + 2, pattern_.size()));
    const bool options = pattern_.substr(at_, 2) == "(?" && end != std::string_view::npos &&
                         (pattern_[end] == ':' || pattern_[end] == ')');
    std::string text(pattern_.substr(at_, options ? end - at_ : 1));
    std::replace(text.begin(), text.end(), 'm', 's');
    at_ += text.size();
    return text;
  }

  std::string outer_class() {
    ++at_;
    return char_class(0).as_pattern();
  }

  void fail(const std::string& why) const {
    base::throw_error("text", base::concat("the regular expression is invalid at offset ", at_, ": ", why));
  }

  std::string category_ranges(std::string_view category) const {
    std::string out;
    for (const CategoryRange& range : category_updates()) {
      const std::string_view name(range.category, 2);
      const bool letter_case = category == "L&" && (name == "Lu" || name == "Ll" || name == "Lt");
      if (!letter_case && name.substr(0, category.size()) != category) continue;
      char buffer[40];
      std::snprintf(buffer, sizeof buffer, "\\x{%x}-\\x{%x}", unsigned(range.first), unsigned(range.last));
      out += buffer;
    }
    return out;
  }

  // Returns the items of \p{name} inside a class, without brackets.
  std::string category_items(const std::string& name) const {
    return "\\p{" + name + "}" + (updated_ ? category_ranges(name) : "");
  }

  std::string word_items() const {
    return category_items("L") + category_items("M") + category_items("Nd") + category_items("Nl") +
           category_items("Pc") + kCircledLetters;
  }

  // Returns the items of [:name:].
  std::string posix_items(const std::string& name) const {
    const auto all = [this](std::initializer_list<const char*> categories) {
      std::string items;
      for (const char* category : categories) items += category_items(category);
      return items;
    };
    const std::string letters = "\\p{Alphabetic}" + category_items("L") + category_items("Nl") + kNewAlphabetic;
    if (name == "alpha") return letters;
    if (name == "alnum") return letters + category_items("Nd");
    if (name == "lower") return "\\p{Lowercase}" + category_items("Ll") + kNewLowercase;
    if (name == "upper") return "\\p{Uppercase}" + category_items("Lu");
    if (name == "digit") return category_items("Nd");
    if (name == "word") return word_items();
    if (name == "punct") return all({"P", "S"});
    if (name == "graph") return all({"L", "M", "N", "P", "S", "Cf", "Co"});
    if (name == "print") return all({"L", "M", "N", "P", "S", "Cf", "Co", "Zs"});
    if (name == "space") return kSpaces;
    if (name == "blank") return "\\t\\p{Zs}";
    if (name == "cntrl") return "\\p{Cc}";
    if (name == "xdigit") return kHexDigits;
    if (name == "ascii") return "\\x{0}-\\x{7f}";
    fail("[:" + name + ":] is not a class");
    return "";
  }

  std::string word_boundary(bool negated) const {
    const std::string word = "[" + word_items() + kLatinNumbers + "]", before = "(?<=" + word + ")",
                      not_before = "(?<!" + word + ")", after = "(?=" + word + ")", not_after = "(?!" + word + ")";
    return negated ? "(?:" + before + after + "|" + not_before + not_after + ")"
                   : "(?:" + before + not_after + "|" + not_before + after + ")";
  }

  // Returns a pattern for the items or, in a class, adds them to it.
  static std::string add_items(const std::string& items, bool negated, Class* inside) {
    const std::string pattern = (negated ? "[^" : "[") + items + "]";
    if (inside == nullptr) return pattern;
    if (negated) inside->others.push_back(pattern);
    else inside->items += items;
    return "";
  }

  // Translates one escape sequence and advances at_ past it. In a class adds it to the class. Outside a class returns
  // a complete pattern.
  std::string escape(Class* inside) {
    if (at_ + 1 >= pattern_.size()) fail("it ends in a backslash");
    const char letter = pattern_[at_ + 1];
    if (letter == 'p' || letter == 'P') return property(inside);
    // The caller copies the other bytes of a multibyte character.
    const size_t size = static_cast<unsigned char>(letter) >= 0x80 ? 1 : 2;
    const std::string text = size == 1 ? "" : std::string(pattern_.substr(at_, size));
    at_ += size;
    const bool negated = letter < 'a';
    switch (letter) {
      case 's':
      case 'S':
        return add_items(kSpaces, negated, inside);
      case 'w':
      case 'W':
        return add_items(word_items() + (inside == nullptr ? kLatinNumbers : ""), negated, inside);
      case 'd':
      case 'D':
        return add_items(category_items("Nd"), negated, inside);
      case 'h':
      case 'H':
        return add_items(kHexDigits, negated, inside);
      case 'v':
        return add_items("\\x{b}", false, inside);
      case 'E':  // these letters are escapes of PCRE2 only
      case 'Q':
      case 'V':
        return add_items(std::string(1, letter), false, inside);
      case 'b':
      case 'B':
        if (inside == nullptr) return word_boundary(negated);
        break;
      default:
        break;
    }
    if (inside == nullptr) return text;
    inside->items += text;
    return "";
  }

  std::string property(Class* inside) {
    bool negated = pattern_[at_ + 1] == 'P';
    at_ += 2;
    std::string name;
    if (at_ < pattern_.size() && pattern_[at_] == '{') {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) fail("\\p{ has no }");
      name = pattern_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else if (at_ < pattern_.size()) {
      name = pattern_[at_++];
    }
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    if (name.empty()) fail("\\p has no name");
    const bool category = name.size() <= 2;
    if (!category) name = script_or_property(name);
    return add_items(category ? category_items(name) : "\\p{" + name + "}", negated, inside);
  }

  static std::string script_or_property(const std::string& name) {
    static constexpr const char* kCategories[][2] = {{"Letter", "L"},
                                                     {"Number", "N"},
                                                     {"Punctuation", "P"},
                                                     {"Symbol", "S"},
                                                     {"Mark", "M"},
                                                     {"Separator", "Z"},
                                                     {"Other", "C"},
                                                     {"Uppercase_Letter", "Lu"},
                                                     {"Lowercase_Letter", "Ll"},
                                                     {"Decimal_Number", "Nd"}};
    for (const auto& entry : kCategories) {
      if (name == entry[0]) return entry[1];
    }
    static constexpr const char* kNotScripts[] = {"Any",       "Xan",        "Xsp",         "Xps",
                                                  "Xwd",       "Alphabetic", "Emoji",       "ASCII",
                                                  "Lowercase", "Uppercase",  "White_Space", "Extended_Pictographic"};
    for (const char* other : kNotScripts) {
      if (name == other) return name;
    }
    return "sc:" + name;
  }

  // Starts after '['; returns after the matching ']'.
  Class char_class(int depth) {
    if (depth > kMaxClassDepth) fail("classes are nested too deeply");
    Class result;
    std::vector<Class> operands;
    if (peek('^')) {
      result.negated = true;
      ++at_;
    }
    if (peek(']')) {
      result.items += "\\]";
      ++at_;
    }
    while (!peek(']')) {
      if (at_ >= pattern_.size()) fail("a class is not closed");
      if (pattern_.substr(at_, 2) == "&&") {
        at_ += 2;
        finish_operand(result, operands);
      } else if (pattern_.substr(at_, 2) == "[:") {
        const size_t end = pattern_.find(":]", at_);
        if (end == std::string_view::npos) fail("[: has no :]");
        const bool negated = pattern_.substr(at_ + 2, 1) == "^";
        const size_t begin = at_ + (negated ? 3 : 2);
        add_items(posix_items(std::string(pattern_.substr(begin, end - begin))), negated, &result);
        at_ = end + 2;
      } else if (peek('[')) {
        ++at_;
        add_nested(char_class(depth + 1), result);
      } else if (peek('\\')) {
        escape(&result);
      } else {
        result.items += pattern_[at_++];
      }
    }
    ++at_;
    if (!operands.empty()) {
      finish_operand(result, operands);
      result.also = std::move(operands);
    }
    return result;
  }

  static void add_nested(Class inner, Class& result) {
    if (inner.negated || !inner.also.empty()) {
      result.others.push_back(inner.as_pattern());
      return;
    }
    result.items += inner.items;
    std::move(inner.others.begin(), inner.others.end(), std::back_inserter(result.others));
  }

  static void finish_operand(Class& result, std::vector<Class>& operands) {
    if (result.items.empty() && result.others.empty()) return;
    Class operand;
    std::swap(operand.items, result.items);
    std::swap(operand.others, result.others);
    operands.push_back(std::move(operand));
  }

  bool peek(char c) const { return at_ < pattern_.size() && pattern_[at_] == c; }

  std::string_view pattern_;
  bool updated_;
  size_t at_ = 0;
};

}  // namespace

std::string translate_regex(std::string_view pattern, bool updated_unicode) {
  return Translator(pattern, updated_unicode).run();
}

std::string quote_regex(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace metroplex::text
