// Jinja tests, the names after `is`.
#include "text/jinja/interpreter.h"

#include <cmath>

#include "base/error.h"

namespace metroplex::text::jinja {
namespace {

const Value& other(const Arguments& arguments) {
  MPX_CHECK(!arguments.positional.empty(), "text", "the test 'is ", arguments.callee,
            "' needs a value to compare with");
  return arguments.positional[0];
}

int64_t whole(const Value& value) {
  MPX_CHECK(value.is_integer(), "text", "a ", type_name(value), " is not a whole number",
            value.is_undefined() ? ": " + value.undefined().what : std::string());
  return value.integer();
}

bool divides(int64_t divisor, int64_t number) {
  MPX_CHECK(divisor != 0, "text", "division by zero");
  return divisor == -1 || number % divisor == 0;
}

bool same(const Value& a, const Value& b) { return a.kind() == b.kind() && equal(a, b); }

bool in_case(const std::string& text, std::string (*wanted)(std::string_view),
             std::string (*other)(std::string_view)) {
  return text == wanted(text) && text != other(text);
}

#define TEST_ROW(name, expression)                                                       \
  {                                                                                      \
    name, [](Interpreter& run, const Value& value, const Arguments& arguments) -> bool { \
      return (void)run, (void)value, (void)arguments, (expression);                      \
    }                                                                                    \
  }

constexpr struct {
  std::string_view name;
  Test test;
} kTests[] = {
    TEST_ROW("defined", !value.is_undefined()),
    TEST_ROW("undefined", value.is_undefined()),
    TEST_ROW("none", value.is(Kind::none)),
    TEST_ROW("string", value.is_string()),
    TEST_ROW("escaped", value.is_safe()),
    TEST_ROW("mapping", value.is_dict()),
    TEST_ROW("iterable", value.is_string() || value.is_dict() || value.is_list() || value.is_undefined() ||
                             value.is(Kind::loop) || value.is(Kind::iterator)),
    TEST_ROW("sequence", value.is_string() || value.is_dict() || value.is_list() || value.is_undefined()),
    TEST_ROW("boolean", value.is(Kind::boolean)),
    TEST_ROW("true", value.is(Kind::boolean) && value.truth()),
    TEST_ROW("false", value.is(Kind::boolean) && !value.truth()),
    TEST_ROW("integer", value.is(Kind::integer)),
    TEST_ROW("float", value.is(Kind::real)),
    TEST_ROW("number", value.is_number()),
    TEST_ROW("callable", value.is(Kind::callable) || value.is_undefined()),
    TEST_ROW("odd", whole(value) % 2 != 0),
    TEST_ROW("even", whole(value) % 2 == 0),
    TEST_ROW("divisibleby", divides(whole(other(arguments)), whole(value))),
    TEST_ROW("lower", in_case(run.convert_text(value), lower, upper)),
    TEST_ROW("upper", in_case(run.convert_text(value), upper, lower)),
    TEST_ROW("in", contains(run, other(arguments), value)),
    TEST_ROW("sameas", same(value, other(arguments))),
    TEST_ROW("eq", equal(value, other(arguments))),
    TEST_ROW("equalto", equal(value, other(arguments))),
    TEST_ROW("==", equal(value, other(arguments))),
    TEST_ROW("ne", !equal(value, other(arguments))),
    TEST_ROW("!=", !equal(value, other(arguments))),
    TEST_ROW("lt", less(value, other(arguments))),
    TEST_ROW("lessthan", less(value, other(arguments))),
    TEST_ROW("<", less(value, other(arguments))),
    TEST_ROW("gt", less(other(arguments), value)),
    TEST_ROW("greaterthan", less(other(arguments), value)),
    TEST_ROW(">", less(other(arguments), value)),
    TEST_ROW("le", !less(other(arguments), value)),
    TEST_ROW("<=", !less(other(arguments), value)),
    TEST_ROW("ge", !less(value, other(arguments))),
    TEST_ROW(">=", !less(value, other(arguments))),
    TEST_ROW("filter", value.is_string() && find_filter(value.string()) != nullptr),
    TEST_ROW("test", value.is_string() && find_test(value.string()) != nullptr),
};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& row : kTests) {
    if (row.name == name) return row.test;
  }
  return nullptr;
}

}  // namespace metroplex::text::jinja
