#include "pickle/value.h"

#include "base/error.h"

namespace metroplex::pickle {

const char* to_string(Kind kind) {
  static constexpr const char* kNames[] = {"None",   "a bool", "an integer", "a large integer", "a float",
                                           "a str",  "bytes",  "a tuple",    "a list",          "a set",
                                           "a dict", "a name", "an object",  "a persistent id"};
  return kNames[static_cast<size_t>(kind)];
}

void Document::fail(const Value& value, const std::string& problem, const char* fix) const {
  base::throw_error("pickle", base::concat("'", path_, "', byte ", value.at, ": ", problem, "; ", fix));
}

int64_t Document::integer(const Value& value, const char* what) const {
  if (value.kind != Kind::integer) fail(value, base::concat(what, " is ", to_string(value.kind), ", not an integer"));
  return value.integer;
}

std::string_view Document::text(const Value& value, const char* what) const {
  if (value.kind != Kind::text) fail(value, base::concat(what, " is ", to_string(value.kind), ", not a str"));
  return value.text;
}

const std::vector<const Value*>& Document::sequence(const Value& value, const char* what) const {
  if (value.kind == Kind::tuple || value.kind == Kind::list) return value.items;
  const bool is_size = value.is_object("torch.Size") && value.arguments->items.size() == 1;
  const Value* const inner = is_size ? value.arguments->items.front() : nullptr;
  if (inner != nullptr && (inner->kind == Kind::tuple || inner->kind == Kind::list)) return inner->items;
  fail(value, base::concat(what, " is ", to_string(value.kind), ", not a tuple or list"));
}

std::vector<int64_t> Document::integers(const Value& value, const char* what) const {
  std::vector<int64_t> numbers;
  for (const Value* item : sequence(value, what)) numbers.push_back(integer(*item, what));
  return numbers;
}

const std::vector<const Value*>& Document::pairs(const Value& value, const char* what) const {
  const bool has_pairs = value.kind == Kind::dict || value.kind == Kind::object;
  if (!has_pairs || value.items.size() % 2 != 0)
    fail(value, base::concat(what, " is ", to_string(value.kind), ", not a dict"));
  return value.items;
}

const Value* Document::find(const Value& value, std::string_view key) const {
  const bool by_attribute = value.kind == Kind::object && value.items.empty() && value.state != nullptr;
  const Value& dict = by_attribute ? *value.state : value;
  if (dict.kind != Kind::dict && dict.kind != Kind::object) return nullptr;
  const auto& items = pairs(dict, "a value");
  for (size_t i = items.size(); i > 0; i -= 2) {
    if (items[i - 2]->kind == Kind::text && items[i - 2]->text == key) return items[i - 1];
  }
  return nullptr;
}

const Value& Document::get(const Value& value, std::string_view key) const {
  const Value* const found = find(value, key);
  if (found == nullptr) fail(value, base::concat("there is no '", key, "'"));
  return *found;
}

}  // namespace metroplex::pickle
