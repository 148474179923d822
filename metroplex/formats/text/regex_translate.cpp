#include "text/regex.h"

#include <cstdio>
#include <vector>

#include "base/error.h"

namespace metroplex::text {
namespace {

constexpr const char* kCircledLetters =
    "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
constexpr int kMaxClassDepth = 16;

class Translator {
 public:
  Translator(std::string_view pattern, bool updated) : pattern_(pattern), updated_(updated) {}

  std::string run() {
    std::string out;
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        out += escape(false);
      } else if (c == '[') {
        ++at_;
        out += char_class(0).as_pattern();
      } else {
        out += c;
        ++at_;
      }
    }
    return out;
  }

 private:
  // A character class: items, with optional negation, and further classes that must also match (&&).
  struct Class {
    bool negated = false;
    std::string items;
    std::vector<Class> also;

    std::string body() const { return std::string(negated ? "[^" : "[") + items + "]"; }
    std::string as_pattern() const {
      if (also.empty()) return body();
      std::string rest = items.empty() ? "" : "(?=[" + items + "])";
      for (const Class& other : also) rest += "(?=" + other.as_pattern() + ")";
      return negated ? "(?:(?!" + rest + ")(?s:.))" : "(?:" + rest + "(?s:.))";
    }
  };

  void fail(const std::string& why) const {
    base::throw_error("text", base::concat("the regular expression is invalid at offset ", at_, ": ", why));
  }

  std::string ranges_of(std::string_view category) const {
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
    return "\\p{" + name + "}" + (updated_ ? ranges_of(name) : "");
  }

  std::string word_items() const {
    return category_items("L") + category_items("M") + category_items("Nd") + category_items("Nl") +
           category_items("Pc") + kCircledLetters;
  }

  // Translates one escape sequence and advances at_ past it. Outside a class the result must be a complete pattern.
  std::string escape(bool in_class) {
    if (at_ + 1 >= pattern_.size()) fail("it ends in a backslash");
    const char letter = pattern_[at_ + 1];
    if (letter == 'p' || letter == 'P') return property(in_class);
    std::string items;
    switch (letter) {
      case 's':
      case 'S':
        items = "\\t-\\r\\x{85}\\p{Z}";
        break;
      case 'w':
      case 'W':
        items = word_items();
        break;
      case 'd':
      case 'D':
        items = category_items("Nd");
        break;
      case 'h':
      case 'H':
        items = "0-9a-fA-F";
        break;
      default: {
        const size_t size = static_cast<unsigned char>(letter) >= 0x80 ? 1 : 2;  // the caller copies the other bytes
        std::string out(pattern_.substr(at_, size));
        if (size == 1) out.clear();
        at_ += size;
        return out;
      }
    }
    at_ += 2;
    const bool negated = letter < 'a';
    if (!in_class) return (negated ? "[^" : "[") + items + "]";
    if (!negated) return items;
    return std::string("\\") + letter;  // PCRE2's own class; it differs in U+180E and in newer characters
  }

  std::string property(bool in_class) {
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
    std::string items = category ? category_items(name) : "\\p{" + name + "}";
    if (!in_class) return (negated ? "[^" : "[") + items + "]";
    return negated ? "\\P{" + name + "}" : items;
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
        result.items += pattern_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (peek('[')) {
        ++at_;
        nested(char_class(depth + 1), result, operands);
      } else {
        result.items += peek('\\') ? escape(true) : std::string(1, pattern_[at_++]);
      }
    }
    ++at_;
    if (!operands.empty()) {
      finish_operand(result, operands);
      result.also = std::move(operands);
    }
    return result;
  }

  void nested(Class inner, Class& result, std::vector<Class>& operands) const {
    if (inner.also.empty() && !inner.negated) {
      result.items += inner.items;
      return;
    }
    // A class that is a whole operand of && may have any form. PCRE2 can combine only plain unions with other items.
    const bool operand_ends = pattern_.substr(at_, 2) == "&&" || pattern_.substr(at_, 1) == "]";
    if (!result.items.empty() || !operand_ends) fail("a class with a negated class and other items is not supported");
    operands.push_back(std::move(inner));
  }

  static void finish_operand(Class& result, std::vector<Class>& operands) {
    if (result.items.empty()) return;
    Class operand;
    operand.items = std::move(result.items);
    result.items.clear();
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
