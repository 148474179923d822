#include "files/json_text.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "files/text_form.h"

namespace metroplex::files {
namespace {

using Json = nlohmann::json;
constexpr int kMaxDepth = 100;

}  // namespace

Json parse_json_strictly(std::string_view text, const std::string& what) {
  MPX_CHECK(text.find('\0') == std::string_view::npos, "files", what, " is not JSON: it contains a NUL byte");
  MPX_CHECK(text.substr(0, 3) != "\xef\xbb\xbf", "files", what, " is not JSON: it starts with a byte order mark");
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    MPX_CHECK(depth <= kMaxDepth, "files", what, " is nested deeper than ", kMaxDepth, " levels");
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      MPX_CHECK(keys.back().insert(key).second, "files", what, " contains the key '", printable(key), "' twice");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    base::throw_error("files", base::concat(what, " is not JSON: ", printable(error.what())));
  }
}

namespace {

// Checks a text before a value is built, because the builder and copies of the value recurse without limit.
class OrderedJsonCheck final : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  OrderedJsonCheck(std::string_view text, bool exact) : text_(text), exact_(exact) {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string& digits) override {
    MPX_CHECK(!exact_ || digits.find_first_of(".eE") != std::string::npos, "files", "the number ", printable(digits),
              " does not fit in 64 bits and would be rounded; write it as a string, in quotes");
    return true;
  }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::ordered_json::binary_t&) override { return true; }
  bool key(std::string&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) override {
    const std::string form = no_text_form(text_), why = form.empty() ? "" : "; it " + form;
    base::throw_error("files",
                      base::concat("is not JSON in UTF-8, ", byte > text_.size() ? "it ends too early, after" : "at",
                                   " byte ", std::min(byte, text_.size()), why));
  }

 private:
  bool open() {
    MPX_CHECK(++depth_ <= kMaxOrderedJsonDepth, "files", "is JSON nested deeper than ", kMaxOrderedJsonDepth,
              " levels");
    return true;
  }
  std::string_view text_;
  bool exact_;
  int depth_ = 0;
};

}  // namespace

nlohmann::ordered_json parse_ordered_json(std::string_view text, bool exact) {
  std::string replaced;
  if (has_python_json(text)) text = replaced = without_python_json(text);
  OrderedJsonCheck check(text, exact);
  nlohmann::ordered_json::sax_parse(text, &check);
  return nlohmann::ordered_json::parse(text);
}

const Json& json_member(const Json& object, const char* key, const std::string& what) {
  MPX_CHECK(object.is_object(), "files", what, " is ", shortened(object), ", not an object");
  const auto it = object.find(key);
  MPX_CHECK(it != object.end(), "files", what, " has no '", key, "'");
  return *it;
}

const std::string& json_string(const Json& object, const char* key, const std::string& what) {
  const Json& value = json_member(object, key, what);
  MPX_CHECK(value.is_string(), "files", what, ": '", key, "' is ", shortened(value), ", not a string");
  return value.get_ref<const std::string&>();
}

const Json& json_array(const Json& object, const char* key, const std::string& what) {
  const Json& value = json_member(object, key, what);
  MPX_CHECK(value.is_array(), "files", what, ": '", key, "' is ", shortened(value), ", not a list");
  return value;
}

namespace {

int64_t to_count(const Json& value, const char* key, const std::string& what) {
  MPX_CHECK(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()},
            "files", what, ": '", key, "' contains ", shortened(value), ", not a whole number in [0, 2^63)");
  return value.get<int64_t>();
}

}  // namespace

int64_t json_count(const Json& object, const char* key, const std::string& what) {
  return to_count(json_member(object, key, what), key, what);
}

std::vector<int64_t> json_counts(const Json& object, const char* key, const std::string& what) {
  std::vector<int64_t> values;
  for (const Json& item : json_array(object, key, what)) values.push_back(to_count(item, key, what));
  return values;
}

std::string shortened(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

std::string printable(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, 200)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 32 || byte == 127) {
      out += base::concat("\\x", "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]);
    } else {
      out += c;
    }
  }
  return name.size() > 200 ? out + "..." : out;
}

}  // namespace metroplex::files
