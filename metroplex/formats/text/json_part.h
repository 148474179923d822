// A JSON value of a tokenizer.json together with its location in the file, which error messages start with.
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

  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    MPX_CHECK(condition, "text", where_, ": ", parts...);
  }

  // Returns a member; JSON null if it is missing.
  JsonPart member(const char* key) const;
  bool has(const char* key) const { return !member(key).is_null(); }
  std::vector<JsonPart> items() const;

  // Typed members; a missing or null member gives the fallback.
  bool flag(const char* key, bool fallback) const;
  std::string string(const char* key) const;  // required
  std::string string(const char* key, const std::string& fallback) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;  // required; must be in [low, high]
  std::string type() const { return string("type"); }

 private:
  const nlohmann::json* value_;
  std::string where_;
};

// Larger ids are rejected as damage, because tables indexed by id are allocated.
inline constexpr int64_t kMaxTokenId = (1 << 24) - 1;

inline constexpr int kMaxSequenceDepth = 8;

}  // namespace metroplex::text
