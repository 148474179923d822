// Python's values as far as chat templates use them. Strings are UTF-8; lengths and indices count code points.
// Lists and dicts are immutable, as in the sandbox of transformers; only namespaces change. Containers cannot
// contain namespaces, loops or methods, and namespaces cannot contain macros. Values therefore form no cycles, and
// their depth is limited.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace metroplex::text::jinja {

class Value;
using List = std::vector<Value>;

struct Undefined {
  std::string what;  // error message for its use: "'tools' is undefined"
};
struct None {};
struct Arguments;

// Preserves insertion order.
class Dict {
 public:
  using Item = std::pair<Value, Value>;
  // An existing key gets the new value and keeps its position.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view name) const;
  const std::vector<Item>& items() const { return items_; }

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> by_name_;
};

struct Namespace {
  std::map<std::string, Value> attributes;
};

struct Statement;
struct Scope;

// The variable `loop` of one iteration.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int64_t depth = 1;
  const Statement* statement = nullptr;  // of a recursive loop; null: loop() is refused
  std::shared_ptr<Scope> around;         // the variables visible to its statement
  std::shared_ptr<List> changed;         // arguments of the last loop.changed()
};

struct Callable {
  std::string name;
  std::function<Value(Arguments&)> call;
  bool is_macro = false;                     // containers accept macros but no other callables
  std::vector<std::string> parameters = {};  // names of a macro's parameters
};

// A generator, the result of filters such as map: its items can be read once, it is always true, and it has no length
// and no indices. Or a view of a dict (items(), keys(), values()), which can be read repeatedly.
struct Iterator {
  std::shared_ptr<const List> items;
  std::string view;  // "dict_items", "dict_keys" or "dict_values"; empty: a generator
  size_t taken = 0;
};

enum class Kind {
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  dict,
  space,
  loop,
  callable,
  iterator
};

class Value {
 public:
  using Shared = std::shared_ptr<const List>;
  struct Tuple {
    Shared items;
    bool is_group = false;
  };

  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None none) : data_(none) {}
  Value(bool truth) : data_(truth) {}
  Value(int64_t number) : data_(number) {}
  Value(double number) : data_(number) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  // Returns a str that is marked as escaped (Python's Markup), as the filters safe and escape do. Concatenation with
  // + escapes the other str.
  static Value safe_text(std::string text);
  // These throw base::Error for items that containers reject, and for too deep nesting.
  static Value list(List items);
  static Value tuple(List items);
  static Value group(Value key, Value list);  // a tuple with the attributes `grouper` and `list`
  static Value dict(Dict items);
  static Value generator(List items);
  static Value view(List items, std::string name);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_string() const { return is(Kind::string); }
  bool is_safe() const { return is_safe_; }
  bool is_dict() const { return is(Kind::dict); }
  bool is_list() const { return is(Kind::list) || is(Kind::tuple); }
  bool is_integer() const { return is(Kind::integer) || is(Kind::boolean); }  // as in Python
  bool is_group() const { return is(Kind::tuple) && std::get<Tuple>(data_).is_group; }
  bool is_number() const { return is_integer() || is(Kind::real); }

  const std::string& string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const Shared& shared_items() const;  // list or tuple
  const List& items() const { return *shared_items(); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  int64_t integer() const;
  double real() const;  // any number
  const Undefined& undefined() const { return std::get<Undefined>(data_); }
  const std::shared_ptr<Namespace>& space() const { return std::get<std::shared_ptr<Namespace>>(data_); }
  const std::shared_ptr<Loop>& loop() const { return std::get<std::shared_ptr<Loop>>(data_); }
  Iterator& iterator() const { return *std::get<std::shared_ptr<Iterator>>(data_); }
  bool is_generator() const { return is(Kind::iterator) && iterator().view.empty(); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  bool truth() const;
  bool holds_macro() const { return holds_macro_; }  // containers only
  int depth() const { return depth_; }               // nesting depth of containers; 0 for other values
  // The approximate size as text in units of 16 bytes, contents included. Shared contents count each time.
  int64_t weight() const { return is_string() ? 1 + static_cast<int64_t>(string().size()) / 16 : weight_; }

 private:
  void hold(const Value& item);
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>, Shared, Tuple,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
               std::shared_ptr<const Callable>, std::shared_ptr<Iterator>>
      data_;
  bool holds_macro_ = false, is_safe_ = false;
  int depth_ = 0;
  int64_t weight_ = 1;
};

inline constexpr int kMaxValueDepth = 120;
inline constexpr int64_t kMaxValueWeight = int64_t{1} << 24;

bool equal(const Value& a, const Value& b);
// a < b. Throws base::Error for values that have no order.
bool less(const Value& a, const Value& b);

// Python's name of the type, for messages: "str", "dict", ...
const char* type_name(const Value& value);
// Python's str() and repr(). Throw base::Error for loops, callables and namespaces.
std::string to_text(const Value& value);
std::string representation(const Value& value);
std::string real_text(double number);

// Arguments of a call, read by name or position.
struct Arguments {
  std::string callee;
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns the argument `name`, or the positional argument `place`; null if neither is given.
  const Value* find(size_t place, std::string_view name) const;
  const Value& need(size_t place, std::string_view name) const;
  // Throws base::Error for more than `places` arguments, or for a name outside `names`.
  void only(size_t places, std::initializer_list<std::string_view> names = {}) const;
};

}  // namespace metroplex::text::jinja
