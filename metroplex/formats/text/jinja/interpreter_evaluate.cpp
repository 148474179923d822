#include "text/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::text::jinja {
namespace {

// Wraps a method or function of a table as a value.
Value bound(std::string name, std::function<Value(Arguments&)> call) {
  auto made = std::make_shared<Callable>();
  made->name = std::move(name);
  made->call = std::move(call);
  return Value(std::shared_ptr<const Callable>(std::move(made)));
}

bool holds(Interpreter& run, const std::string& word, const Value& a, const Value& b) {
  if (word == "==") return equal(a, b);
  if (word == "!=") return !equal(a, b);
  if (word == "<") return less(a, b);
  if (word == ">") return less(b, a);
  if (word == "<=") return less(a, b) || equal(a, b);
  if (word == ">=") return less(b, a) || equal(a, b);
  return contains(run, b, a) == (word == "in");
}

}  // namespace

Value Interpreter::evaluate_deeper(const Expression& expression, const ScopePtr& scope) {
  line_ = expression.line;
  const auto child = [&](size_t i) { return evaluate(*expression.children[i], scope); };
  const auto children = [&] {
    List values;
    for (size_t i = 0; i < expression.children.size(); ++i) values.push_back(child(i));
    charge(16 * values.size());
    return values;
  };
  switch (expression.op) {
    case Op::constant:
      return expression.constant;
    case Op::name:
      return name(expression, scope);
    case Op::list:
      return Value::list(children());
    case Op::tuple:
      return Value::tuple(children());
    case Op::dict: {
      const List values = children();
      Dict dict;
      for (size_t i = 0; i < values.size(); i += 2) dict.set(values[i], values[i + 1]);
      return Value::dict(std::move(dict));
    }
    case Op::attribute:
      return attribute(*this, child(0), expression.name);
    case Op::item: {
      const Value object = child(0);
      return item(*this, object, child(1));
    }
    case Op::slice:
      return sliced(expression, scope);
    case Op::call:
      return evaluate_call(expression, scope);
    case Op::filter:
      return apply_filter(expression, scope);
    case Op::test: {
      const Value value = child(0);
      const Arguments given = arguments(expression, scope);
      line_ = expression.line;
      return call_test(expression.name, value, given);
    }
    case Op::negate:
    case Op::plus: {
      const Value value = child(0);
      if (value.is(Kind::real)) return expression.op == Op::negate ? -value.real() : value.real();
      return arithmetic(*this, expression.op == Op::negate ? "-" : "+", int64_t{0}, value);
    }
    case Op::invert:
      return !child(0).truth();
    case Op::both: {
      const Value left = child(0);
      return left.truth() ? child(1) : left;
    }
    case Op::either: {
      const Value left = child(0);
      return left.truth() ? left : child(1);
    }
    case Op::choice:
      if (child(1).truth()) return child(0);
      return expression.children[2]
                 ? child(2)
                 : Value(Undefined{"the inline if expression had no else and its condition is false"});
    case Op::compare:
      return evaluate_compare(expression, scope);
    case Op::arithmetic: {
      const Value left = child(0), right = child(1);
      line_ = expression.line;
      return arithmetic(*this, expression.name, left, right);
    }
    case Op::concat: {
      std::string joined;
      for (size_t i = 0; i < expression.children.size(); ++i) joined += convert_text(child(i));
      return text(std::move(joined));
    }
  }
  return {};
}

Value Interpreter::name(const Expression& expression, const ScopePtr& scope) const {
  if (const Value* value = scope->find(expression.name)) return *value;
  if (const Function function = find_function(expression.name)) {
    auto* run = const_cast<Interpreter*>(this);
    return bound(expression.name, [run, function](Arguments& arguments) { return function(*run, arguments); });
  }
  return Undefined{"'" + expression.name + "' is undefined"};
}

Value Interpreter::evaluate_compare(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.children[0], scope);
  for (size_t i = 0; i < expression.words.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1], scope);
    line_ = expression.line;
    charge(static_cast<size_t>(right.weight()));
    if (!holds(*this, expression.words[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::sliced(const Expression& expression, const ScopePtr& scope) {
  const Value object = evaluate(*expression.children[0], scope);
  Value ends[3] = {None{}, None{}, None{}};
  for (size_t i = 0; i < 3; ++i) {
    if (expression.children[i + 1]) ends[i] = evaluate(*expression.children[i + 1], scope);
  }
  line_ = expression.line;
  return slice(*this, object, ends[0], ends[1], ends[2]);
}

void Interpreter::add_named(const Value& more, Arguments& made) {
  MPX_CHECK(more.is_dict(), "text", "cannot apply ** to a ", type_name(more), "; it takes a dict");
  charge_items(more.dict().items().size());
  for (const auto& [name, value] : more.dict().items()) {
    MPX_CHECK(name.is_string(), "text", "cannot apply ** to a dict with a key that is a ", type_name(name),
              "; keys must be str");
    const std::string key = name.string();
    const bool given = std::any_of(made.named.begin(), made.named.end(),
                                   [&key](const auto& argument) { return argument.first == key; });
    MPX_CHECK(!given, "text", "the argument '", key, "' is passed twice");
    charge(made.named.size() + 1);
    made.named.emplace_back(key, value);
  }
}

Arguments Interpreter::arguments(const Expression& expression, const ScopePtr& scope) {
  Arguments made;
  made.callee = expression.name;
  for (size_t i = 1; i < expression.children.size(); ++i)
    made.positional.push_back(evaluate(*expression.children[i], scope));
  for (const auto& [name, value] : expression.named) made.named.emplace_back(name, evaluate(*value, scope));
  if (expression.more_positional) {
    for (Value& value : elements(*this, evaluate(*expression.more_positional, scope)))
      made.positional.push_back(std::move(value));
  }
  if (expression.more_named) add_named(evaluate(*expression.more_named, scope), made);
  return made;
}

Value Interpreter::evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller) {
  const Expression& callee = *expression.children[0];
  Value object, function;
  const bool method = callee.op == Op::attribute;
  if (method) object = evaluate(*callee.children[0], scope);
  const bool direct = method && has_method(object, callee.name);
  if (!direct) function = method ? attribute(*this, object, callee.name) : evaluate(callee, scope);
  Arguments given = arguments(expression, scope);
  if (caller != nullptr) given.named.emplace_back("caller", *caller);
  line_ = expression.line;
  given.callee = callee.name + "()";
  if (direct) return call_method(*this, object, callee.name, given);
  MPX_CHECK(!function.is_undefined(), "text", function.undefined().what, ", but it is called");
  if (function.is(Kind::loop)) return recurse(*function.loop(), given);
  MPX_CHECK(function.is(Kind::callable), "text", "a ", type_name(function), " is not callable");
  return function.callable().call(given);
}

Value Interpreter::apply_filter(const Expression& expression, const ScopePtr& scope, const Value* input) {
  const Value value = !expression.children[0]                    ? *input
                      : expression.children[0]->op == Op::filter ? apply_filter(*expression.children[0], scope, input)
                                                                 : evaluate(*expression.children[0], scope);
  Arguments given = arguments(expression, scope);
  line_ = expression.line;
  charge(1);
  return call_filter(expression.name, value, given);
}

Value Interpreter::call_filter(const std::string& name, const Value& input, Arguments& given) {
  const Filter filter = find_filter(name);
  MPX_CHECK(filter != nullptr, "text", "the filter '", name, "' is not supported");
  given.callee = "the filter " + name;
  if (input.is_string()) charge(static_cast<size_t>(input.weight()));
  return filter(*this, input, given);
}

bool Interpreter::call_test(const std::string& name, const Value& input, const Arguments& given) {
  const Test test = find_test(name);
  MPX_CHECK(test != nullptr, "text", "the test 'is ", name, "' is not supported");
  // The cost covers tests that compare both values.
  if (input.is_string()) charge(static_cast<size_t>(input.weight()));
  for (const Value& other : given.positional) charge(static_cast<size_t>(other.weight()));
  return test(*this, input, given);
}

}  // namespace metroplex::text::jinja
