// A part of a tokenizer.json and where it stands in the file, so that every complaint names the place.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace metroplex::text {

class JsonPart {
 public:
  JsonPart(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }

  // Throws base::Error "<where>: parts...".
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    MPX_CHECK(condition, "text", where_, ": ", parts...);
  }

  // A member; JSON null where it is missing.
  JsonPart member(const char* key) const;
  bool has(const char* key) const { return !member(key).is_null(); }
  // The value as a list.
  std::vector<JsonPart> items() const;

  // Members of a type; the fallback where they are missing or null.
  bool flag(const char* key, bool fallback) const;
  std::string string(const char* key) const;  // must be there
  std::string string(const char* key, const std::string& fallback) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;  // must be there and in [low, high]
  std::string type() const { return string("type"); }

 private:
  const nlohmann::json* value_;
  std::string where_;
};

// Ids above this are taken for damage: tables by id are built in memory.
inline constexpr int64_t kMaxTokenId = (1 << 24) - 1;

// How deep Sequence may hold Sequence.
inline constexpr int kMaxSequenceDepth = 8;

}  // namespace metroplex::text
