// A compiled regular expression over UTF-8 text, run by PCRE2's JIT. The expression is shared by all threads; what a
// match writes to lives in a RegexScratch that one thread holds at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::text {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
};

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
  // `pattern` in Oniguruma's dialect (see regex_translate.h). Throws base::Error with the place of a mistake.
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

}  // namespace metroplex::text
