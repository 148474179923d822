// A compiled regular expression over UTF-8 text, run by PCRE2's JIT. The expression is shared by all threads; what a
// match writes to lives in a RegexScratch that one thread holds at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_range.h"

namespace metroplex::text {

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  // `pattern` in Oniguruma's dialect. Throws base::Error with the place of a mistake.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // All matches from left to right, none overlapping, in `matches` (cleared first). `text` must be valid UTF-8.
  // Throws base::Error when a match takes more steps than PCRE2's limits allow.
  void find_all(std::string_view text, RegexScratch& scratch, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// tokenizer.json holds regular expressions in Oniguruma's dialect; PCRE2 matches them here. The two differ in what
// \s, \w, \p{Han} and nested or intersected classes mean; this rewrites a pattern so that PCRE2 means the same.

// With `updated_unicode` the categories also take in what category_updates() lists. Throws base::Error for what
// cannot be said in PCRE2 (a negated class among others inside a class, nesting deeper than 16).
std::string translate_regex(std::string_view pattern, bool updated_unicode);

// A pattern that matches the string itself.
std::string quote_regex(std::string_view literal);

// Code points that Unicode 15 to 16 assigned, with their general category. The distribution's PCRE2 and utf8proc
// know Unicode 14 and before; tokenizers of today split text by Unicode 16. This table is the difference.

struct CategoryRange {
  char32_t first, last;
  char category[3];
};

// Ascending, disjoint.
std::span<const CategoryRange> category_updates();

// The range that holds `code_point`, or null.
const CategoryRange* find_category_update(char32_t code_point);

}  // namespace metroplex::text
