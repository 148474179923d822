// Damaged inputs for parsers: a few random edits of a valid text, deterministic for a seed.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace metroplex::files {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }

  // One to four edits: flip a bit, change, insert or delete bytes, truncate, repeat a range, insert a number or
  // syntax that often breaks parsers.
  std::string operator()(std::string text) {
    for (uint64_t edits = 1 + below(4); edits > 0; --edits) edit(text);
    return text;
  }

 private:
  void edit(std::string& text) {
    static const std::vector<std::string> kTokens{"0",
                                                  "-1",
                                                  "18446744073709551615",
                                                  "9223372036854775807",
                                                  "4611686018427387904",
                                                  "1e9",
                                                  "null",
                                                  "[]",
                                                  "{}",
                                                  "\"\"",
                                                  "[[[[[[",
                                                  ",",
                                                  ":",
                                                  "\"",
                                                  "}",
                                                  "]",
                                                  std::string("\0", 1),
                                                  "\xff",
                                                  "\\ud800",
                                                  "true"};
    const size_t at = below(text.size() + 1);
    switch (below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 2:
        text.insert(at, kTokens[below(kTokens.size())]);
        break;
      case 3:
        text.erase(at, 1 + below(9));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.insert(at, text.substr(below(text.size() + 1), 1 + below(40)));
        break;
      default: {  // a number becomes another one
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(digit, (end == std::string::npos ? text.size() : end) - digit, kTokens[below(6)]);
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace metroplex::files
