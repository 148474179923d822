// UTF-8 as RFC 3629 defines it (no surrogates, nothing above U+10FFFF, shortest form only).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace metroplex::base {

// Offset of the first byte from `position` on that is not ASCII; text.size() when all is.
size_t ascii_prefix(std::string_view text, size_t position = 0);

// Offset of the first byte that is not part of valid UTF-8; text.size() when all is valid.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// One U+FFFD for each maximal bad part (Unicode 3.9, "substitution of maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

// For a terminal: control characters (C0 except tab and newline, DEL, C1) and bidirectional controls (U+202A to
// U+202E, U+2066 to U+2069) as \uXXXX, which a JSON string reads back; bytes that are not UTF-8 as \xHH.
std::string escape_controls(std::string_view text);
// Bytes at the end of `text` that may begin a code point whose other bytes follow; 0 to 3.
size_t incomplete_utf8_suffix(std::string_view text);

// Bytes of the code point that begins with `lead`, in valid UTF-8.
inline size_t code_point_size(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

}  // namespace metroplex::base
