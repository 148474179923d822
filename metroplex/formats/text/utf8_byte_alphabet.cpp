#include "text/utf8.h"

namespace metroplex::text {

ByteAlphabet::ByteAlphabet() {
  byte_codes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t code_point = itself ? static_cast<char32_t>(byte) : next++;
    append_utf8(spelling_[byte], code_point);
    byte_codes_[code_point] = byte;
  }
}

std::optional<std::string> ByteAlphabet::bytes(std::string_view token) const {
  std::string out;
  for (size_t position = 0; position < token.size();) {
    const char32_t c = next_code_point(token, position);
    if (c >= byte_codes_.size() || byte_codes_[c] < 0) return std::nullopt;
    out += static_cast<char>(byte_codes_[c]);
  }
  return out;
}

}  // namespace metroplex::text
