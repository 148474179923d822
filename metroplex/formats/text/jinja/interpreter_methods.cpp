// Methods of dicts, lists and loops, and the table of method names per type.
#include "text/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::text::jinja {
namespace {

template <class Names>
bool is_in(std::string_view name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) { return is_in(name, names); }

constexpr std::string_view kMutators[] = {"append", "clear",   "extend",     "insert", "pop",   "popitem",
                                          "remove", "reverse", "setdefault", "sort",   "update"};

Value call_dict_method(Interpreter& run, const Dict& dict, const std::string& name, Arguments& arguments) {
  if (name == "get") {
    arguments.only(2);
    const Value& key = arguments.need(0, "key");
    run.charge(key.is_string() ? key.string().size() / 16 : dict.items().size());
    const Value* found = dict.find(key);
    const Value* fallback = arguments.find(1, "default");
    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
  }
  arguments.only(0);
  run.charge_items(2 * dict.items().size());
  List out;
  for (const auto& [key, value] : dict.items())
    out.push_back(name == "keys" ? key : name == "values" ? value : Value::tuple({key, value}));
  return Value::view(std::move(out), "dict_" + name);
}

Value call_list_method(Interpreter& run, const Value& list, const std::string& name, Arguments& arguments) {
  arguments.only(1);
  run.charge(static_cast<size_t>(list.weight()));
  const List& items = list.items();
  const Value& wanted = arguments.need(0, "value");
  const auto same = [&](const Value& value) { return equal(value, wanted); };
  if (name == "count") return static_cast<int64_t>(std::count_if(items.begin(), items.end(), same));
  const auto found = std::find_if(items.begin(), items.end(), same);
  MPX_CHECK(found != items.end(), "text", "index: the value is not in the list");
  return static_cast<int64_t>(found - items.begin());
}

Value call_loop_method(Interpreter& run, Loop& loop, const std::string& name, const Arguments& arguments) {
  if (name == "cycle") {
    MPX_CHECK(!arguments.positional.empty(), "text", "loop.cycle needs a value");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  for (const Value& value : arguments.positional) run.charge(static_cast<size_t>(value.weight()));
  const auto now = std::make_shared<List>(arguments.positional);
  const bool changed =
      !loop.changed || !std::equal(now->begin(), now->end(), loop.changed->begin(), loop.changed->end(), equal);
  loop.changed = now;
  return changed;
}

// Methods of an escaped str: the results are marked as escaped, and texts in the arguments are escaped.
Value call_safe_text_method(Interpreter& run, const Value& text, const std::string& name, Arguments& arguments) {
  const auto escape = [&](Value& value) { value = escaped_text(run, value); };
  if (name == "replace" && arguments.positional.size() > 1) escape(arguments.positional[1]);
  if (name == "format") {
    for (Value& value : arguments.positional) escape(value);
    for (auto& argument : arguments.named) escape(argument.second);
  }
  if (name == "join" && !arguments.positional.empty()) {
    List items = elements(run, arguments.positional[0]);
    for (Value& value : items) escape(value);
    arguments.positional[0] = run.list(std::move(items));
  }
  const Value made = call_string_method(run, text.string(), name, arguments);
  if (made.is_string()) return text_like(text, made.string());
  if (!made.is_list()) return made;
  List parts;
  for (const Value& part : made.items()) parts.push_back(text_like(text, part.string()));
  return made.is(Kind::tuple) ? Value::tuple(std::move(parts)) : Value::list(std::move(parts));
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::string:
      return has_string_method(name);
    case Kind::dict:
      return is_one_of(name,
                       {"get", "items", "keys", "values", "copy", "clear", "pop", "popitem", "setdefault", "update"});
    case Kind::list:
      return is_one_of(name, {"index", "count", "copy"}) || is_in(name, kMutators);
    case Kind::tuple:
      return is_one_of(name, {"index", "count"});
    case Kind::loop:
      return is_one_of(name, {"cycle", "changed"});
    default:
      return false;
  }
}

Value call_method(Interpreter& run, const Value& object, const std::string& name, Arguments& arguments) {
  if (object.is_safe()) return call_safe_text_method(run, object, name, arguments);
  if (object.is_string()) return call_string_method(run, object.string(), name, arguments);
  if (object.is(Kind::loop)) return call_loop_method(run, *object.loop(), name, arguments);
  MPX_CHECK(!is_in(name, kMutators), "text", "'", name, "' would change a ", type_name(object),
            "; templates cannot change values");
  if (name == "copy") {
    arguments.only(0);
    return object;
  }
  return object.is_dict() ? call_dict_method(run, object.dict(), name, arguments)
                          : call_list_method(run, object, name, arguments);
}

}  // namespace metroplex::text::jinja
