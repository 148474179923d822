#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace metroplex::text::jinja {
// Checks that a container accepts the item, and adds the item's weight and depth.
void Value::hold(const Value& item) {
  const Kind kind = item.kind();
  const bool is_macro = kind == Kind::callable && item.callable().is_macro;
  MPX_CHECK(is_macro || (kind != Kind::space && kind != Kind::loop && kind != Kind::callable), "text", "a ",
            type_name(item), " cannot be stored in a list, a dict or a namespace");
  holds_macro_ = holds_macro_ || is_macro || item.holds_macro_;
  depth_ = std::max(depth_, item.depth() + 1);
  weight_ += item.weight();
  MPX_CHECK(depth_ <= kMaxValueDepth, "text", "values are nested deeper than ", kMaxValueDepth, " levels");
  MPX_CHECK(weight_ <= kMaxValueWeight, "text", "a list or dict has too many values");
}

void Dict::set(Value key, Value value) {
  MPX_CHECK(!key.is(Kind::list) && !key.is_dict(), "text", "a ", type_name(key), " cannot be the key of a dict");
  if (const Value* there = find(key)) {
    *const_cast<Value*>(there) = std::move(value);
    return;
  }
  if (key.is_string()) by_name_.emplace(key.string(), items_.size());
  items_.emplace_back(std::move(key), std::move(value));
}

const Value* Dict::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &items_[found->second].second;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.string()));
  for (const Item& item : items_) {
    if (!item.first.is_string() && equal(item.first, key)) return &item.second;
  }
  return nullptr;
}

Value Value::safe_text(std::string text) {
  Value value(std::move(text));
  value.is_safe_ = true;
  return value;
}

Value Value::list(List items) {
  Value value;
  value.depth_ = 1;
  for (const Value& item : items) value.hold(item);
  value.data_ = std::make_shared<const List>(std::move(items));
  return value;
}

Value Value::tuple(List items) {
  Value value;
  value.depth_ = 1;
  for (const Value& item : items) value.hold(item);
  value.data_ = Tuple{std::make_shared<const List>(std::move(items))};
  return value;
}

Value Value::group(Value key, Value list) {
  Value value = tuple({std::move(key), std::move(list)});
  std::get<Tuple>(value.data_).is_group = true;
  return value;
}

Value Value::dict(Dict items) {
  Value value;
  value.depth_ = 1;
  for (const Dict::Item& item : items.items()) {
    value.hold(item.first);
    value.hold(item.second);
  }
  value.data_ = std::make_shared<const Dict>(std::move(items));
  return value;
}

Value Value::generator(List items) {
  Value value = list(std::move(items));
  const auto iterator = std::make_shared<Iterator>();
  iterator->items = value.shared_items();
  value.data_ = iterator;
  return value;
}

Value Value::view(List items, std::string name) {
  Value value = generator(std::move(items));
  value.iterator().view = std::move(name);
  return value;
}

const Value::Shared& Value::shared_items() const {
  return is(Kind::tuple) ? std::get<Tuple>(data_).items : std::get<Shared>(data_);
}

int64_t Value::integer() const { return is(Kind::boolean) ? std::get<bool>(data_) : std::get<int64_t>(data_); }

double Value::real() const { return is(Kind::real) ? std::get<double>(data_) : static_cast<double>(integer()); }

bool Value::truth() const {
  switch (kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return integer() != 0;
    case Kind::real:
      return real() != 0;
    case Kind::string:
      return !string().empty();
    case Kind::list:
    case Kind::tuple:
      return !items().empty();
    case Kind::dict:
      return !dict().items().empty();
    case Kind::space:
    case Kind::loop:
    case Kind::callable:
      return true;
    case Kind::iterator:
      return is_generator() || !iterator().items->empty();
  }
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.real() == b.real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::string:
      return a.string() == b.string();
    case Kind::list:
    case Kind::tuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
    case Kind::dict: {
      const auto& items = a.dict().items();
      return items.size() == b.dict().items().size() &&
             std::all_of(items.begin(), items.end(), [&](const auto& item) {
               const Value* other = b.dict().find(item.first);
               return other != nullptr && equal(item.second, *other);
             });
    }
    case Kind::space:
      return a.space() == b.space();
    case Kind::loop:
      return a.loop() == b.loop();
    case Kind::callable:
      return &a.callable() == &b.callable();
    case Kind::iterator:
      return &a.iterator() == &b.iterator();
    default:
      return true;  // undefined, none
  }
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() < b.integer() : a.real() < b.real();
  if (a.is_string() && b.is_string()) return a.string() < b.string();
  if (a.is_list() && a.kind() == b.kind())
    return std::lexicographical_compare(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), less);
  MPX_CHECK(!a.is_undefined(), "text", a.undefined().what);
  MPX_CHECK(!b.is_undefined(), "text", b.undefined().what);
  base::throw_error("text", base::concat("a ", type_name(a), " and a ", type_name(b), " cannot be ordered"));
}

const char* type_name(const Value& value) {
  static constexpr const char* kNames[] = {"undefined value",
                                           "None",
                                           "bool",
                                           "int",
                                           "float",
                                           "str",
                                           "list",
                                           "tuple",
                                           "dict",
                                           "namespace",
                                           "loop",
                                           "function",
                                           "generator or dict view"};
  return kNames[static_cast<size_t>(value.kind())];
}

const Value* Arguments::find(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

const Value& Arguments::need(size_t place, std::string_view name) const {
  const Value* value = find(place, name);
  MPX_CHECK(value != nullptr, "text", callee, " needs the argument '", name, "'");
  return *value;
}

void Arguments::only(size_t places, std::initializer_list<std::string_view> names) const {
  MPX_CHECK(positional.size() <= places, "text", callee, " takes ", places, " arguments, not ", positional.size());
  for (const auto& [name, value] : named) {
    MPX_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "text", callee, " has no argument '", name,
              "'");
  }
}

}  // namespace metroplex::text::jinja
