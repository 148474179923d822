// UTF-8 as RFC 3629 defines it (no surrogates, nothing above U+10FFFF, shortest form only).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace metroplex::base {

// Returns the offset of the first non-ASCII byte from `position` on; text.size() if there is none.
size_t ascii_prefix(std::string_view text, size_t position = 0);

// Returns the offset of the first byte that is not part of valid UTF-8; text.size() if all is valid.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Replaces each maximal invalid part with one U+FFFD (Unicode 3.9, "substitution of maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

// For terminals: control characters (C0 except tab and newline, DEL, C1), line separators and invisible format
// characters (bidirectional controls, byte order marks, tags; not the joiners U+200C and U+200D) become \uXXXX, as in
// JSON strings. Bytes that are not UTF-8 become \xHH.
std::string escape_controls(std::string_view text);
// Returns the number of bytes at the end of `text` that may start an incomplete code point; 0 to 3.
size_t incomplete_utf8_suffix(std::string_view text);

// Returns the bytes of the code point that starts with `lead`, in valid UTF-8.
inline size_t code_point_size(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

}  // namespace metroplex::base
