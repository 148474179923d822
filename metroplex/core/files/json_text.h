// Strict JSON parsing of files (RFC 8259) with depth limits. Messages contain file and position.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace metroplex::files {

// Rejects input that nlohmann's parser accepts silently: duplicate keys in an object, a byte order mark, a
// terminating NUL, comments, nesting deeper than 100. `what` starts the message of the base::Error.
nlohmann::json parse_json_strictly(std::string_view text, const std::string& what);

// Parses user-written text, such as a line of a chat. Keys keep their order, nesting is limited, and the extensions
// of Python's json module are accepted (files/text_form.h). The base::Error has a message like "is not JSON in UTF-8,
// at byte 7"; the caller prepends file or line. `exact` rejects integers that would be rounded.
nlohmann::ordered_json parse_ordered_json(std::string_view text, bool exact = false);
inline constexpr int kMaxOrderedJsonDepth = 120;

// Returns a member of an object. Throws base::Error "<what> has no '<key>'" or similar.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key, const std::string& what);
const std::string& json_string(const nlohmann::json& object, const char* key, const std::string& what);
const nlohmann::json& json_array(const nlohmann::json& object, const char* key, const std::string& what);
// Returns a value in [0, 2^63).
int64_t json_count(const nlohmann::json& object, const char* key, const std::string& what);
std::vector<int64_t> json_counts(const nlohmann::json& object, const char* key, const std::string& what);

// Returns at most 80 bytes of the value's text in ASCII, for messages.
std::string shortened(const nlohmann::json& value);
// Returns at most 200 bytes of a name, with control characters as \xNN.
std::string printable(std::string_view name);

}  // namespace metroplex::files
