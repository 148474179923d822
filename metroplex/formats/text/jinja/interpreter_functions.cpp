// Global functions of templates: Jinja's range, namespace and dict, and the functions that transformers adds.
#include "text/jinja/interpreter.h"

#include <ctime>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // as in Jinja's sandbox

Value range(Interpreter& run, Arguments& arguments) {
  arguments.only(3);
  for (const Value& value : arguments.positional)
    MPX_CHECK(value.is_integer(), "text", "range: the arguments must be int, not a ", type_name(value),
              value.is_undefined() ? ": " + value.undefined().what : std::string());
  const Value& first = arguments.need(0, "stop");
  const int64_t begin = arguments.positional.size() > 1 ? first.integer() : 0;
  const int64_t end = arguments.positional.size() > 1 ? arguments.positional[1].integer() : first.integer();
  const int64_t step = arguments.positional.size() > 2 ? arguments.positional[2].integer() : 1;
  MPX_CHECK(step != 0, "text", "range: the step must not be 0");
  List items;
  for (__int128 at = begin; step > 0 ? at < end : at > end; at += step) {
    MPX_CHECK(static_cast<int64_t>(items.size()) < kMaxRange, "text", "a range has more than ", kMaxRange,
              " numbers");
    items.emplace_back(static_cast<int64_t>(at));
  }
  return run.list(std::move(items));
}

Value make_dict(Interpreter& run, Arguments& arguments) {
  Dict dict;
  const auto set = [&](const Value& key, const Value& value) {
    run.charge(16 + (key.is_string() ? key.string().size() / 4 : dict.items().size()));
    dict.set(key, value);
  };
  if (!arguments.positional.empty()) for_each_pair(run, arguments.positional[0], "dict()", set);
  for (const auto& [name, value] : arguments.named) set(name, value);
  return Value::dict(std::move(dict));
}

Value new_namespace(Interpreter& run, Arguments& arguments) {
  const auto space = run.new_space();
  const Value first = make_dict(run, arguments);  // checks its items
  MPX_CHECK(!first.holds_macro(), "text", "a macro cannot be stored in a namespace");
  for (const auto& [name, value] : first.dict().items()) {
    MPX_CHECK(name.is_string(), "text", "namespace: a name must be a str, not a ", type_name(name));
    space->attributes[name.string()] = value;
  }
  return space;
}

Value raise_exception(Interpreter& run, Arguments& arguments) {
  base::throw_error("text", "the template refuses this chat: " + run.convert_text(arguments.need(0, "message")));
}

// Removes microseconds and the time zone from the format. C and Python's naive datetime write these directives
// differently.
std::string without_zone(const std::string& format) {
  std::string out;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      out += format[at];
      continue;
    }
    const char directive = format[++at];
    if (directive == 'f') out += "000000";
    else if (directive != 'z' && directive != 'Z') out += {'%', directive};
  }
  return out;
}

Value strftime_now(Interpreter& run, Arguments& arguments) {
  arguments.only(1);
  const std::string format = without_zone(run.convert_text(arguments.need(0, "format")));
  MPX_CHECK(format.size() < 600, "text", "strftime_now: the format has ", format.size(),
            " bytes; the maximum is 599");
  const std::time_t now = static_cast<std::time_t>(run.now());
  std::tm parts{};
  localtime_r(&now, &parts);
  char buffer[4096];
  const size_t size = format.empty() ? 0 : std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  return run.text(replace_invalid_utf8({buffer, size}));
}

constexpr struct {
  std::string_view name;
  Function function;
} kFunctions[] = {{"range", range},
                  {"namespace", new_namespace},
                  {"dict", make_dict},
                  {"raise_exception", raise_exception},
                  {"strftime_now", strftime_now}};

}  // namespace

Function find_function(std::string_view name) {
  for (const auto& row : kFunctions) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

}  // namespace metroplex::text::jinja
