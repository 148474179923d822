// Jinja tests, the names after `is`.
#include "text/jinja/interpreter.h"

#include <cmath>

#include "base/error.h"

namespace metroplex::text::jinja {
namespace {

const Value& other(const Arguments& a) {
  MPX_CHECK(!a.positional.empty(), "text", "the test 'is ", a.callee, "' needs a value to compare with");
  return a.positional[0];
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

#define TEST_ROW(name, expression)                                           \
  {                                                                          \
    name, [](Interpreter& run, const Value& v, const Arguments& a) -> bool { \
      return (void)run, (void)v, (void)a, (expression);                      \
    }                                                                        \
  }

constexpr struct {
  std::string_view name;
  Test test;
} kTests[] = {
    TEST_ROW("defined", !v.is_undefined()),
    TEST_ROW("undefined", v.is_undefined()),
    TEST_ROW("none", v.is(Kind::none)),
    TEST_ROW("string", v.is_string()),
    TEST_ROW("escaped", v.is_safe()),
    TEST_ROW("mapping", v.is_dict()),
    TEST_ROW("iterable", v.is_string() || v.is_dict() || v.is_list() || v.is_undefined() || v.is(Kind::loop) ||
                             v.is(Kind::iterator)),
    TEST_ROW("sequence", v.is_string() || v.is_dict() || v.is_list() || v.is_undefined()),
    TEST_ROW("boolean", v.is(Kind::boolean)),
    TEST_ROW("true", v.is(Kind::boolean) && v.truth()),
    TEST_ROW("false", v.is(Kind::boolean) && !v.truth()),
    TEST_ROW("integer", v.is(Kind::integer)),
    TEST_ROW("float", v.is(Kind::real)),
    TEST_ROW("number", v.is_number()),
    TEST_ROW("callable", v.is(Kind::callable) || v.is_undefined()),
    TEST_ROW("odd", whole(v) % 2 != 0),
    TEST_ROW("even", whole(v) % 2 == 0),
    TEST_ROW("divisibleby", divides(whole(other(a)), whole(v))),
    TEST_ROW("lower", in_case(run.text_of(v), lower, upper)),
    TEST_ROW("upper", in_case(run.text_of(v), upper, lower)),
    TEST_ROW("in", contains(run, other(a), v)),
    TEST_ROW("sameas", same(v, other(a))),
    TEST_ROW("eq", equal(v, other(a))),
    TEST_ROW("equalto", equal(v, other(a))),
    TEST_ROW("==", equal(v, other(a))),
    TEST_ROW("ne", !equal(v, other(a))),
    TEST_ROW("!=", !equal(v, other(a))),
    TEST_ROW("lt", less(v, other(a))),
    TEST_ROW("lessthan", less(v, other(a))),
    TEST_ROW("<", less(v, other(a))),
    TEST_ROW("gt", less(other(a), v)),
    TEST_ROW("greaterthan", less(other(a), v)),
    TEST_ROW(">", less(other(a), v)),
    TEST_ROW("le", !less(other(a), v)),
    TEST_ROW("<=", !less(other(a), v)),
    TEST_ROW("ge", !less(v, other(a))),
    TEST_ROW(">=", !less(v, other(a))),
    TEST_ROW("filter", v.is_string() && find_filter(v.string()) != nullptr),
    TEST_ROW("test", v.is_string() && find_test(v.string()) != nullptr),
};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& row : kTests) {
    if (row.name == name) return row.test;
  }
  return nullptr;
}

}  // namespace metroplex::text::jinja
