// JSON that comes from a file: parsed by the letter of RFC 8259 and bounded, with messages that name file and place.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace metroplex::files {

// Refuses what nlohmann's parser lets through or lets win silently: a key given twice in one object, a byte order
// mark, a NUL for an end, comments, nesting deeper than 100. `what` opens the message of the base::Error.
nlohmann::json parse_json_strictly(std::string_view text, const std::string& what);

// Parses text that people write, such as a line of a chat: keys keep their order, nesting is bounded, and the
// extensions of Python's json module are read (files/text_form.h). The caller puts the name of the file or line
// before the message of the base::Error, which is like "is not JSON in UTF-8, at byte 7". `exact` refuses a whole
// number that would be rounded.
nlohmann::ordered_json parse_ordered_json(std::string_view text, bool exact = false);
inline constexpr int kMaxOrderedJsonDepth = 120;

// A member of an object. Throws base::Error "<what> has no '<key>'" and the like.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key, const std::string& what);
const std::string& json_string(const nlohmann::json& object, const char* key, const std::string& what);
const nlohmann::json& json_array(const nlohmann::json& object, const char* key, const std::string& what);
// In [0, 2^63).
int64_t json_count(const nlohmann::json& object, const char* key, const std::string& what);
std::vector<int64_t> json_counts(const nlohmann::json& object, const char* key, const std::string& what);

// At most 80 bytes of the value's text, in ASCII, for messages.
std::string shortened(const nlohmann::json& value);
// At most 200 bytes of a name, control characters as \xNN.
std::string printable(std::string_view name);

}  // namespace metroplex::files
