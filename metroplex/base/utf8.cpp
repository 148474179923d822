#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace metroplex::base {
namespace {

// Bytes of the longest prefix of `text` that begins a valid code point (1 for a byte that begins none), and whether
// the code point is whole.
size_t scan_code_point(std::string_view text, bool& whole) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  whole = lead < 0x80;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 1;
  const size_t size = code_point_size(lead);
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  size_t seen = 1;
  while (seen < size && seen < text.size() && byte(seen) >= low && byte(seen) <= high) {
    ++seen;
    low = 0x80;
    high = 0xBF;
  }
  whole = seen == size;
  return seen;
}

}  // namespace

size_t ascii_prefix(std::string_view text, size_t position) {
  while (position + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + position, 8);
    if (word & 0x8080808080808080ull) break;
    position += 8;
  }
  while (position < text.size() && static_cast<unsigned char>(text[position]) < 0x80) ++position;
  return position;
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t position = 0;
  while ((position = ascii_prefix(text, position)) < text.size()) {
    bool whole = false;
    const size_t size = scan_code_point(text.substr(position), whole);
    if (!whole) return position;
    position += size;
  }
  return position;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t position = 0;
  while (position < text.size()) {
    const size_t plain = valid_utf8_prefix(text.substr(position));
    out.append(text.substr(position, plain));
    position += plain;
    if (position == text.size()) break;
    bool whole = false;
    position += scan_code_point(text.substr(position), whole);
    out += "\xEF\xBF\xBD";
  }
  return out;
}

}  // namespace metroplex::base
