// GPT-2 writes bytes as characters: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on, in
// order.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace metroplex::text {

class ByteAlphabet {
 public:
  ByteAlphabet();

  // The character of a byte, in UTF-8.
  const std::string& spelling(unsigned char byte) const { return spelling_[byte]; }

  // The bytes that a token spells; nullopt when it holds a character outside of the alphabet.
  std::optional<std::string> bytes(std::string_view token) const;

 private:
  std::array<std::string, 256> spelling_;
  std::array<int, 0x144> byte_of_;  // by code point; -1 outside
};

}  // namespace metroplex::text
