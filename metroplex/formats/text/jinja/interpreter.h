// Evaluates a parsed template by traversing its tree. Steps, text and depth are bounded, so that no template runs
// or grows without limit. One Interpreter renders once. Operators, methods, filters, tests and functions are
// tables in the files interpreter_<table>.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace metroplex::text::jinja {

struct Limits {
  int64_t steps = 100'000'000;  // evaluations, plus the cost of values that grow
  int depth = 500;              // of nested evaluations
};

// Variables of one block; lookup continues in `parent`.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

struct Rendered {
  std::string text;
  // Bytes of `text` between {% generation %} and its end, in order.
  std::vector<std::pair<size_t, size_t>> generated;
  // A generation block ran inside a macro, a set or another block: its range is unknown.
  bool generated_elsewhere = false;
};

class Interpreter {
 public:
  explicit Interpreter(Limits limits, int64_t now) : limits_(limits), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws base::Error; line() is the line of the error.
  Rendered run(const Statements& statements, const Dict& variables);
  int line() const { return line_; }

  // The tables call these functions.
  void charge(size_t steps);
  // Charges the cost before a text or list is created, so that a too large one is never allocated. 4 bytes of text
  // cost a step, a list item 16.
  void charge_text(size_t bytes);
  void charge_items(size_t items) { charge(16 * std::min(items, size_t{1} << 36)); }
  Value text(std::string text);  // requires a preceding charge_text of about its size
  Value list(List items);
  Value generator(List items);
  std::string convert_text(const Value& value);  // to_text, with its cost
  Value call_filter(const std::string& name, const Value& input, Arguments& arguments);
  bool call_test(const std::string& name, const Value& input, const Arguments& arguments);
  std::shared_ptr<Namespace> new_space();
  int64_t now() const { return now_; }  // seconds since 1970

 private:
  enum class LoopControl { on, leave, again };
  class DepthGuard;

  LoopControl run_all(const Statements& statements, const ScopePtr& scope, std::string& out);
  LoopControl run_one(const Statement& statement, const ScopePtr& scope, std::string& out);
  LoopControl run_loop(const Statement& statement, const ScopePtr& scope, const Value& over, int64_t depth,
                       std::string& out);
  Value recurse(const Loop& loop, const Arguments& arguments);
  std::string capture_output(const Statements& body, const ScopePtr& scope);
  void run_generation(const Statement& statement, const ScopePtr& scope, std::string& out);
  void run_call(const Statement& statement, const ScopePtr& scope, std::string& out);
  Value closure(const std::string& name, const Statement& statement, const ScopePtr& scope);
  Value call_closure(const Statement& statement, const ScopePtr& outer, Arguments& arguments);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  void write(std::string_view text, std::string& out);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_deeper(const Expression& expression, const ScopePtr& scope);
  Value name(const Expression& expression, const ScopePtr& scope) const;
  Value evaluate_compare(const Expression& expression, const ScopePtr& scope);
  Value sliced(const Expression& expression, const ScopePtr& scope);
  Value evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller = nullptr);
  Value apply_filter(const Expression& expression, const ScopePtr& scope, const Value* input = nullptr);
  Arguments arguments(const Expression& expression, const ScopePtr& scope);
  void add_named(const Value& more, Arguments& made);

  Limits limits_;
  int64_t now_, steps_ = 0;
  int depth_ = 0, line_ = 1;
  std::string* top_ = nullptr;
  Rendered rendered_;
  std::vector<std::weak_ptr<Scope>> closed_over_;  // cleared at the end to break reference cycles
};

// interpreter_operators.cpp
Value arithmetic(Interpreter& run, const std::string& sign, const Value& a, const Value& b);
bool contains(Interpreter& run, const Value& container, const Value& item);
Value attribute(Interpreter& run, const Value& object, const std::string& name);
Value item(Interpreter& run, const Value& object, const Value& key);
Value slice(Interpreter& run, const Value& object, const Value& from, const Value& to, const Value& step);
List elements(Interpreter& run, const Value& value);  // the items that a for loop iterates over
// Calls `visit` for each item of a dict, or for each pair in a list of pairs. `taker` is named in the error.
void for_each_pair(Interpreter& run, const Value& value, const char* taker,
                   const std::function<void(const Value& key, const Value& value)>& visit);
Value format_values(Interpreter& run, const Value& format, const List& values);  // Python's %

// interpreter_methods.cpp and interpreter_string_methods.cpp
bool has_method(const Value& object, std::string_view name);
Value call_method(Interpreter& run, const Value& object, const std::string& name, Arguments& arguments);
bool has_string_method(std::string_view name);
Value call_string_method(Interpreter& run, const std::string& text, const std::string& name, Arguments& arguments);

// Lookup by name; null if there is none.
using Filter = Value (*)(Interpreter&, const Value&, Arguments&);
using Test = bool (*)(Interpreter&, const Value&, const Arguments&);
using Function = Value (*)(Interpreter&, Arguments&);
Filter find_filter(std::string_view name);  // searches its own table and the two below
Filter find_list_filter(std::string_view name);
Filter find_text_filter(std::string_view name);
Test find_test(std::string_view name);
Function find_function(std::string_view name);

// interpreter_string_methods.cpp: any script, by Unicode's simple case mappings ('ß' in upper case is 'SS').
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text, bool after_any_other);
std::string escaped(std::string_view text);                      // for HTML
std::string escaped_text(Interpreter& run, const Value& value);  // to_text, escaped unless marked as escaped
Value text_like(const Value& source, std::string text);          // marked as escaped if `source` is
std::string strip(Interpreter& run, std::string_view text, const Value* characters, bool left, bool right);
std::string replace_text(Interpreter& run, std::string_view text, std::string_view from, std::string_view to,
                         int64_t count);
std::vector<std::string> split_lines(Interpreter& run, std::string_view text,
                                     bool keep_ends = false);  // str.splitlines
std::vector<std::string_view> split_characters(std::string_view text);
size_t count_characters(std::string_view text);
bool is_python_word(char32_t c);  // \w of Python's re
enum class Side { left, right, both };
// Adds `fill`, one character, on a side until the text has `width` characters.
std::string pad_text(Interpreter& run, const std::string& text, int64_t width, std::string_view fill, Side side);

// interpreter_search.cpp: finds the first or last occurrence of `part`, npos if there is none, in linear time.
// std::string's find is quadratic for repetitive texts. `part` must outlive the object.
class Search {
 public:
  Search(Interpreter& run, std::string_view part, bool last = false);
  size_t in(std::string_view text) const;

 private:
  std::string_view part_;
  bool last_;
  std::vector<uint32_t> borders_;  // of each prefix (or suffix): its longest border
};

// interpreter_to_json.cpp: json.dumps.
struct JsonStyle {
  bool ascii = false, sorted = false;
  int64_t indent = -1;  // < 0: on one line
  std::string indent_text;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(Interpreter& run, const Value& value, const JsonStyle& style);

}  // namespace metroplex::text::jinja
