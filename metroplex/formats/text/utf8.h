// UTF-8 code points and their classes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace metroplex::text {

using base::ascii_prefix;
using base::code_point_size;
using base::replace_invalid_utf8;
using base::valid_utf8_prefix;

// Returns the code point at `position` and advances `position` past it. `text` must be valid UTF-8 and position
// inside it.
char32_t next_code_point(std::string_view text, size_t& position);

void append_utf8(std::string& out, char32_t code_point);

bool is_ascii(std::string_view text);

// Unicode's White_Space.
bool is_white_space(char32_t code_point);

// Letter, mark, decimal or letter number, connector, circled letter, joiner: \w of UTS 18.
bool is_word(char32_t code_point);

// Any of the number categories.
bool is_numeric(char32_t code_point);

// ASCII punctuation and symbols, or any Unicode punctuation category.
bool is_punctuation(char32_t code_point);

// Two-letter general category in Unicode 16 ("Lu", "Nd", ..., "Cn").
const char* general_category(char32_t code_point);

// GPT-2's byte alphabet: printable Latin-1 characters represent themselves; the other 68 bytes map to U+0100 and up,
// in order.
class ByteAlphabet {
 public:
  ByteAlphabet();

  const std::string& spelling(unsigned char byte) const { return spelling_[byte]; }

  // Returns the bytes that a token spells; nullopt if it has a character outside the alphabet.
  std::optional<std::string> bytes(std::string_view token) const;

 private:
  std::array<std::string, 256> spelling_;
  std::array<int, 0x144> byte_codes_;  // by code point; -1 outside
};

}  // namespace metroplex::text
