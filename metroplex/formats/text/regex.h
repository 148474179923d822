// A compiled regular expression over UTF-8 text, run by PCRE2's JIT. Threads share the expression; each match needs a
// RegexScratch that no other thread uses.
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
  // `pattern` is in Oniguruma's dialect. Throws base::Error with the position of a syntax error.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Stores all non-overlapping matches, from left to right, in `matches` (cleared first). `text` must be valid UTF-8.
  // Throws base::Error when a match exceeds PCRE2's limits.
  void find_all(std::string_view text, RegexScratch& scratch, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// Rewrites an Oniguruma pattern (tokenizer.json) to an equivalent PCRE2 pattern. The dialects differ in \s, \w, \h,
// \v, \b, \p{Han}, [:alpha:], the option m, repeats followed by + or ?, and nested or intersected classes.

// With `updated_unicode` the categories include category_updates(). Throws base::Error for classes nested deeper than
// 16.
std::string translate_regex(std::string_view pattern, bool updated_unicode);

// Returns a pattern that matches exactly the string.
std::string quote_regex(std::string_view literal);

// Code points that Unicode 15 and 16 assigned, with their general category. The distribution's PCRE2 and utf8proc
// implement Unicode 14 or older; current tokenizers split text by Unicode 16. This table is the difference.

struct CategoryRange {
  char32_t first, last;
  char category[3];
};

// Ascending, disjoint.
std::span<const CategoryRange> category_updates();

// Returns the range that contains `code_point`, or null.
const CategoryRange* find_category_update(char32_t code_point);

}  // namespace metroplex::text
