#include "text/utf8.h"

#include <cstring>

#include <utf8proc.h>

#include "text/regex.h"

namespace metroplex::text {

char32_t next_code_point(std::string_view text, size_t& position) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[position + i])); };
  const char32_t lead = byte(0);
  char32_t code_point = lead;
  const size_t size = code_point_size(static_cast<unsigned char>(lead));
  if (size == 2) code_point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (size == 3) code_point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  if (size == 4) code_point = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  position += size;
  return code_point;
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool is_ascii(std::string_view text) { return ascii_prefix(text, 0) == text.size(); }

bool is_white_space(char32_t c) {
  return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

const char* general_category(char32_t c) {
  if (const CategoryRange* range = find_category_update(c)) return range->category;
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}

bool is_word(char32_t c) {
  const char* category = general_category(c);
  const bool circled = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                       (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  return category[0] == 'L' || category[0] == 'M' || std::strcmp(category, "Nd") == 0 ||
         std::strcmp(category, "Nl") == 0 || std::strcmp(category, "Pc") == 0 || circled || c == 0x200C ||
         c == 0x200D;
}

bool is_numeric(char32_t c) { return general_category(c)[0] == 'N'; }

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  return general_category(c)[0] == 'P';
}

}  // namespace metroplex::text
