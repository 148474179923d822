// Positions between two characters that are not adjacent in any token. A text can be split there without changing
// its tokens. The parts are short and repeat, so their ids can be cached. Pairs beyond ASCII are hashed; a
// collision only makes a part longer.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace metroplex::text {

class SplitPoints {
 public:
  SplitPoints() : joined_(kAsciiPairs / 64 + kHashedPairs / 64) {}

  // Records that a token has `right` directly after `left`.
  void join(char32_t left, char32_t right) {
    const size_t at = pair_index(left, right);
    joined_[at / 64] |= uint64_t{1} << (at % 64);
  }
  // Joins all neighbors inside a token, which must be valid UTF-8.
  void join_all(std::string_view token) {
    char32_t last = 0;
    for (size_t position = 0; position < token.size();) {
      const bool first = position == 0;
      const char32_t c = next_code_point(token, position);
      if (!first) join(last, c);
      last = c;
    }
  }
  bool is_joined(char32_t left, char32_t right) const {
    const size_t at = pair_index(left, right);
    return joined_[at / 64] >> (at % 64) & 1;
  }

  // Calls visit(part) for every part from left to right. `text` must be valid UTF-8.
  template <class Visit>
  void for_each_part(std::string_view text, Visit visit) const {
    size_t begin = 0;
    char32_t last = 0;
    for (size_t position = 0; position < text.size();) {
      const size_t here = position;
      const auto lead = static_cast<unsigned char>(text[position]);
      const char32_t c = lead < 128 ? (++position, lead) : next_code_point(text, position);
      if (here > begin && !is_joined(last, c)) {
        visit(text.substr(begin, here - begin));
        begin = here;
      }
      last = c;
    }
    if (begin < text.size()) visit(text.substr(begin));
  }

 private:
  static constexpr size_t kAsciiPairs = 128 * 128, kHashedPairs = 1 << 20;

  static size_t pair_index(char32_t left, char32_t right) {
    if (left < 128 && right < 128) return left * 128 + right;
    const uint64_t key = uint64_t{left} << 32 | right;
    return kAsciiPairs + (key * 0x9E3779B97F4A7C15ull >> 40) % kHashedPairs;
  }

  std::vector<uint64_t> joined_;
};

}  // namespace metroplex::text
