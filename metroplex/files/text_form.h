// Forms of text files that people give by mistake, and forms of JSON that Python's json module reads beyond RFC 8259.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace metroplex::files {

// Without a UTF-8 byte order mark at the begin.
std::string_view without_byte_order_mark(std::string_view text);

// "is compressed with gzip; decompress it first (gunzip)" and the like, for a file that is no text in UTF-8 by its
// first bytes; "" for any other.
std::string no_text_form(std::string_view bytes);

// Why a file is not JSON lines: it is one array, or its objects span several lines. "" if its first line does not
// show either.
std::string no_json_lines_form(std::string_view text);

// Whether a JSON text may need without_python_json.
bool has_python_json(std::string_view text);
// The JSON text with null for NaN, Infinity and -Infinity, and with U+FFFD for each escaped surrogate without its
// pair. `surrogates` counts the latter.
std::string without_python_json(std::string_view text, int64_t* surrogates = nullptr);

}  // namespace metroplex::files
