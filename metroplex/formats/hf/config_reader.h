// Reads keys of config.json, or of adapter_config.json; null counts as missing. Errors name the key. The reader
// records the keys that were read, so that a key without a reader is rejected instead of ignored.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

namespace metroplex::hf {

using Json = nlohmann::json;

// Parses a JSON file. Infinity, which Python writes outside of the standard, becomes {"__float__": "Infinity"}, as in
// files of transformers 5.
Json parse_json(const std::string& text);

class ConfigReader {
 public:
  explicit ConfigReader(Json config, std::string file = "config.json")
      : config_(std::move(config)), given_(config_), file_(std::move(file)) {}
  // Values of missing keys; a null key stays null.
  void add_defaults(const Json& defaults);
  void replace(const char* key, const Json& value) { config_[key] = value; }
  // Marks keys as read that have no effect with the values of the others.
  void ignore(std::initializer_list<const char*> keys) const { read_.insert(keys.begin(), keys.end()); }

  bool has(const char* key) const;
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  // Returns 0 for null and `otherwise` for a missing key.
  int64_t integer_or_null(const char* key, int64_t otherwise) const;
  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  // Returns null for a missing key.
  const Json& value(const char* key) const;
  // Throws if `holds` is false: the value of the key is not supported, `wanted` is.
  void require(bool holds, const char* key, const std::string& wanted) const;
  // Throws if the file has a key that was not read, is not null, and may change the model. `owner`: what contains the
  // keys.
  void refuse_unread(const std::string& owner) const;

 private:
  std::string place(const char* key) const;  // in errors

  Json config_;  // with defaults
  Json given_;
  std::string file_;  // in errors
  mutable std::set<std::string> read_;
};

}  // namespace metroplex::hf
