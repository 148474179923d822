// Values of a pickle, Python's serialization format, without Python. No class or function of a file is executed: it
// is an inert name, and an object is the record of its constructor's arguments and state.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::pickle {

// large_integer: more than 64 bits, not decoded. global: a name such as "torch.Size". object: a call of a global.
// persistent: a reference to data outside of the pickle, such as a storage of torch.save.
enum class Kind {
  none,
  boolean,
  integer,
  large_integer,
  real,
  text,
  bytes,
  tuple,
  list,
  set,
  dict,
  global,
  object,
  persistent
};
const char* to_string(Kind kind);

struct Value {
  Kind kind = Kind::none;
  size_t at = 0;        // byte in the file
  int64_t integer = 0;  // also boolean
  double real = 0;
  std::string_view text;             // text, bytes, global
  std::vector<const Value*> items;   // tuple, list, set; dict: key, value, ...; object: items added after its call
  const Value* callee = nullptr;     // object
  const Value* arguments = nullptr;  // object: a tuple; persistent: the id
  const Value* state = nullptr;      // object, after BUILD; may be null

  bool is_global(std::string_view name) const { return kind == Kind::global && text == name; }
  // Whether this is an object of the class or function `name`.
  bool is_object(std::string_view name) const { return kind == Kind::object && callee->is_global(name); }
};

// Owns the values of one pickle. Values may contain each other, as in Python.
class Document {
 public:
  // Reads a pickle of protocol 2 to 5 that ends at STOP. `text` must outlive the document. `path` and `offset` (of
  // `text` in the file) are for messages. Throws base::Error("pickle") with file, byte and problem. Memory is at most
  // proportional to the size of `text`.
  Document(std::string_view text, std::string path, size_t offset = 0);

  const Value& root() const { return *root_; }
  const std::string& path() const { return path_; }

  // The accessors below throw base::Error("pickle") with the byte of `value` and `what` it is.
  int64_t integer(const Value& value, const char* what) const;
  std::string_view text(const Value& value, const char* what) const;
  // Returns the items of a tuple, list, or torch.Size.
  const std::vector<const Value*>& sequence(const Value& value, const char* what) const;
  std::vector<int64_t> integers(const Value& value, const char* what) const;
  // Returns the pairs key, value, ... of a dict or an object with items (OrderedDict).
  const std::vector<const Value*>& pairs(const Value& value, const char* what) const;
  // Returns the value of a text key of a dict or OrderedDict, or of an attribute of another object; nullptr if there
  // is none. The last of several equal keys counts.
  const Value* find(const Value& value, std::string_view key) const;
  const Value& get(const Value& value, std::string_view key) const;
  [[noreturn]] void fail(const Value& value, const std::string& problem,
                         const char* fix = "copy the file again, or save it with torch.save") const;

 private:
  friend class Interpreter;
  std::string path_;
  std::deque<Value> values_;
  std::deque<std::string> names_;  // text of globals
  const Value* root_ = nullptr;
};

}  // namespace metroplex::pickle
