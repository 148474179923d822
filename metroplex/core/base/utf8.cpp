#include "base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

namespace metroplex::base {
namespace {

// Returns the bytes of the longest prefix of `text` that starts a valid code point (1 if there is none). Sets `whole`
// if the code point is complete.
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

namespace {

bool is_control(char32_t code_point) {
  if (code_point < 0x20) return code_point != '\t' && code_point != '\n';
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x7F, 0x9F},     {0x61C, 0x61C},   {0x180E, 0x180E}, {0x200B, 0x200B}, {0x200E, 0x200F},
      {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [=](const auto& range) { return code_point >= range.first && code_point <= range.second; });
}

// Requires one complete code point.
char32_t decode(std::string_view point) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(point[i]); };
  if (point.size() == 1) return byte(0);
  char32_t value = byte(0) & (0xFFu >> (point.size() + 1));
  for (size_t i = 1; i < point.size(); ++i) value = value << 6 | (byte(i) & 0x3Fu);
  return value;
}

void append_hex(std::string& out, const char* prefix, char32_t value, int digits) {
  out += prefix;
  while (digits-- > 0) out += "0123456789abcdef"[value >> 4 * digits & 15];
}

// Code points above U+FFFF become two surrogates, as in JSON.
void append_escape(std::string& out, char32_t c) {
  if (c > 0xFFFF) append_hex(out, "\\u", 0xD800 + ((c - 0x10000) >> 10), 4);
  append_hex(out, "\\u", c > 0xFFFF ? 0xDC00 + (c & 0x3FF) : c, 4);
}

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    bool whole = false;
    const std::string_view point = text.substr(position, scan_code_point(text.substr(position), whole));
    position += point.size();
    if (whole && !is_control(decode(point))) out += point;
    else if (whole) append_escape(out, decode(point));
    for (size_t i = 0; !whole && i < point.size(); ++i)
      append_hex(out, "\\x", static_cast<unsigned char>(point[i]), 2);
  }
  return out;
}

size_t incomplete_utf8_suffix(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    const std::string_view suffix = text.substr(text.size() - size);
    const auto lead = static_cast<unsigned char>(suffix[0]);
    if (lead < 0x80) return 0;
    if (lead < 0xC0) continue;
    bool whole = false;
    return scan_code_point(suffix, whole) == size && !whole && lead >= 0xC2 && lead <= 0xF4 ? size : 0;
  }
  return 0;
}

}  // namespace metroplex::base
