#include "text/json_part.h"

#include "files/json_text.h"

namespace metroplex::text {
namespace {

const nlohmann::json& null_json() {
  static const nlohmann::json kNull;
  return kNull;
}

}  // namespace

JsonPart JsonPart::member(const char* key) const {
  check(value_->is_object(), "is ", files::shortened(*value_), ", not an object");
  const auto it = value_->find(key);
  return {it == value_->end() ? null_json() : *it, where_ + "." + key};
}

std::vector<JsonPart> JsonPart::items() const {
  check(value_->is_array(), "is ", files::shortened(*value_), ", not a list");
  std::vector<JsonPart> out;
  out.reserve(value_->size());
  for (const auto& item : *value_) out.emplace_back(item, where_ + "[" + std::to_string(out.size()) + "]");
  return out;
}

bool JsonPart::flag(const char* key, bool fallback) const {
  const JsonPart part = member(key);
  if (part.is_null()) return fallback;
  part.check(part.value().is_boolean(), "is ", files::shortened(part.value()), ", not true or false");
  return part.value().get<bool>();
}

std::string JsonPart::string(const char* key) const {
  const JsonPart part = member(key);
  part.check(part.value().is_string(), "is ", files::shortened(part.value()), ", not a string");
  return part.value().get<std::string>();
}

std::string JsonPart::string(const char* key, const std::string& fallback) const {
  return has(key) ? string(key) : fallback;
}

int64_t JsonPart::integer(const char* key, int64_t low, int64_t high) const {
  const JsonPart part = member(key);
  const bool whole = part.value().is_number_integer() &&
                     !(part.value().is_number_unsigned() && part.value().get<uint64_t>() > uint64_t(INT64_MAX));
  const int64_t number = whole ? part.value().get<int64_t>() : 0;
  part.check(whole && number >= low && number <= high, "is ", files::shortened(part.value()),
             ", not a whole number in [", low, ", ", high, "]");
  return number;
}

}  // namespace metroplex::text
