// Detects common wrong formats of text files, and handles JSON that Python's json module accepts beyond RFC 8259.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace metroplex::files {

// Removes a leading UTF-8 byte order mark.
std::string_view without_byte_order_mark(std::string_view text);

// Returns "is compressed with gzip; decompress it first (gunzip)" or similar if the first bytes are not UTF-8 text;
// else "".
std::string no_text_form(std::string_view bytes);

// Returns why a file is not JSON lines: it is one array, objects span several lines, or lines end with a comma. "" if
// the first line shows none of these.
std::string no_json_lines_form(std::string_view text);

bool has_python_json(std::string_view text);
// Replaces NaN, Infinity and -Infinity with null, and each unpaired escaped surrogate with U+FFFD. `surrogates`
// counts the latter.
std::string without_python_json(std::string_view text, int64_t* surrogates = nullptr);

}  // namespace metroplex::files
