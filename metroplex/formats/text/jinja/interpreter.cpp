#include "text/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::text::jinja {

class Interpreter::DepthGuard {
 public:
  DepthGuard(Interpreter& run) : run_(run) {
    MPX_CHECK(++run_.depth_ <= run_.limits_.depth, "text", "the template is nested deeper than ", run_.limits_.depth,
              " levels; check for endless recursion of a macro");
  }
  ~DepthGuard() { --run_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& run_;
};

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::~Interpreter() {
  for (const auto& weak : closed_over_) {
    if (const ScopePtr scope = weak.lock()) {
      const auto variables = std::move(scope->variables);
      scope->variables.clear();
    }
  }
}

Rendered Interpreter::run(const Statements& statements, const Dict& variables) {
  const auto scope = std::make_shared<Scope>();
  for (const auto& [name, value] : variables.items()) scope->variables.emplace_back(name.string(), value);
  // Variables that the template sets at its top level have a separate scope.
  const auto top = std::make_shared<Scope>();
  top->parent = scope;
  std::string out;
  top_ = &out;
  run_all(statements, top, out);
  rendered_.text = std::move(out);
  return std::move(rendered_);
}

void Interpreter::charge(size_t steps) {
  steps_ += static_cast<int64_t>(std::min<size_t>(steps, size_t{1} << 40));
  MPX_CHECK(steps_ <= limits_.steps, "text", "the template takes more than ", limits_.steps,
            " steps; check for an endless loop");
}

void Interpreter::charge_text(size_t bytes) {
  constexpr size_t kMaxText = size_t{1} << 28;
  MPX_CHECK(bytes <= kMaxText, "text", "a text has more than ", kMaxText, " bytes");
  charge(bytes / 4);
}

Value Interpreter::text(std::string text) {
  charge(text.size() / 4);
  return text;
}

std::string Interpreter::convert_text(const Value& value) {
  // A byte of a text in a list can take four bytes when escaped.
  if (value.is_string()) charge_text(value.string().size());
  else charge(static_cast<size_t>(16 * value.weight()));
  return to_text(value);
}

Value Interpreter::list(List items) {
  charge(16 * items.size());
  return Value::list(std::move(items));
}

Value Interpreter::generator(List items) {
  charge(16 * items.size());
  return Value::generator(std::move(items));
}

void Interpreter::write(std::string_view text, std::string& out) {
  charge(text.size() / 4);
  out += text;
}

std::shared_ptr<Namespace> Interpreter::new_space() {
  charge(16);
  return std::make_shared<Namespace>();
}

Interpreter::LoopControl Interpreter::run_all(const Statements& statements, const ScopePtr& scope, std::string& out) {
  const DepthGuard deeper(*this);
  for (const Statement& statement : statements) {
    line_ = statement.line;
    charge(1);
    if (const LoopControl flow = run_one(statement, scope, out); flow != LoopControl::on) return flow;
  }
  return LoopControl::on;
}

ScopePtr inside(const ScopePtr& scope) {
  const auto made = std::make_shared<Scope>();
  made->parent = scope;
  return made;
}

std::string Interpreter::capture_output(const Statements& body, const ScopePtr& scope) {
  std::string out;
  run_all(body, inside(scope), out);
  return out;
}

Interpreter::LoopControl Interpreter::run_one(const Statement& statement, const ScopePtr& scope, std::string& out) {
  switch (statement.what) {
    case StatementKind::text:
      write(statement.text, out);
      break;
    case StatementKind::output: {
      const Value value = evaluate(*statement.expression, scope);
      value.is_string() ? write(value.string(), out) : write(convert_text(value), out);
      break;
    }
    case StatementKind::branch:
      for (const IfBranch& arm : statement.arms) {
        if (!arm.condition || evaluate(*arm.condition, scope).truth()) return run_all(arm.body, scope, out);
      }
      break;
    case StatementKind::loop:
      return run_loop(statement, scope, evaluate(*statement.expression, scope), 1, out);
    case StatementKind::assign:
      assign(statement.target, evaluate(*statement.expression, scope), scope);
      break;
    case StatementKind::capture: {
      const Value value = capture_output(statement.body, scope);
      assign(statement.target, statement.expression ? apply_filter(*statement.expression, scope, &value) : value,
             scope);
      break;
    }
    case StatementKind::macro:
      scope->set(statement.name, closure(statement.name, statement, scope));
      break;
    case StatementKind::call:
      run_call(statement, scope, out);
      break;
    case StatementKind::filter: {
      const Value value = capture_output(statement.body, scope);
      write(convert_text(apply_filter(*statement.expression, scope, &value)), out);
      break;
    }
    case StatementKind::scope: {
      const ScopePtr own = inside(scope);
      std::vector<Value> values;
      for (const auto& assignment : statement.assignments) values.push_back(evaluate(*assignment.second, scope));
      for (size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].first, values[i], own);
      return run_all(statement.body, own, out);
    }
    case StatementKind::generation:
      run_generation(statement, scope, out);
      break;
    case StatementKind::leave:
      return LoopControl::leave;
    case StatementKind::again:
      return LoopControl::again;
  }
  return LoopControl::on;
}

Interpreter::LoopControl Interpreter::run_loop(const Statement& statement, const ScopePtr& scope, const Value& over,
                                               int64_t depth, std::string& out) {
  List items = elements(*this, over);
  if (statement.condition) {
    List kept;
    for (const Value& item : items) {
      const ScopePtr own = inside(scope);
      assign(statement.target, item, own);
      if (evaluate(*statement.condition, own).truth()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = std::make_shared<const List>(std::move(items));
  loop->depth = depth;
  if (statement.recursive) loop->statement = &statement, loop->around = scope;
  for (; loop->index < loop->items->size(); ++loop->index) {
    const ScopePtr own = inside(scope);
    own->set("loop", loop);
    assign(statement.target, (*loop->items)[loop->index], own);
    if (run_all(statement.body, own, out) == LoopControl::leave) break;
  }
  if (loop->items->empty()) return run_all(statement.otherwise, inside(scope), out);
  return LoopControl::on;
}

// Implements loop(items) in a recursive loop.
Value Interpreter::recurse(const Loop& loop, const Arguments& given) {
  MPX_CHECK(loop.statement != nullptr, "text", "loop() is called in a loop that is not marked 'recursive'");
  given.only(1, {"iterable"});
  std::string out;
  run_loop(*loop.statement, loop.around, given.need(0, "iterable"), loop.depth + 1, out);
  return out;
}

void Interpreter::run_generation(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const size_t begin = out.size();
  const bool here = &out == top_;
  write(capture_output(statement.body, scope), out);
  if (here) rendered_.generated.emplace_back(begin, out.size());
  else rendered_.generated_elsewhere = true;
}

void Interpreter::run_call(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const Value caller = closure("caller", statement, scope);
  write(convert_text(evaluate_call(*statement.expression, scope, &caller)), out);
}

// A macro, or the body of a call block, with the surrounding variables.
Value Interpreter::closure(const std::string& name, const Statement& statement, const ScopePtr& scope) {
  charge(16);
  closed_over_.push_back(scope);
  auto made = std::make_shared<Callable>();
  made->name = name;
  made->is_macro = true;
  for (const Parameter& parameter : statement.parameters) made->parameters.push_back(parameter.name);
  made->call = [this, &statement, scope](Arguments& arguments) { return call_closure(statement, scope, arguments); };
  return Value(std::shared_ptr<const Callable>(std::move(made)));
}

Value Interpreter::call_closure(const Statement& statement, const ScopePtr& outer, Arguments& arguments) {
  const ScopePtr own = inside(outer);
  List more;
  Dict others;
  for (size_t i = statement.parameters.size(); i < arguments.positional.size(); ++i)
    more.push_back(arguments.positional[i]);
  for (const auto& argument : arguments.named) {
    const std::string& name = argument.first;
    const bool known = std::any_of(statement.parameters.begin(), statement.parameters.end(),
                                   [&name](const Parameter& parameter) { return parameter.name == name; });
    if (name == "caller" && !known) own->set(name, argument.second);
    else if (!known) others.set(name, argument.second);
  }
  own->set("varargs", Value::tuple(std::move(more)));
  own->set("kwargs", Value::dict(std::move(others)));
  for (size_t i = 0; i < statement.parameters.size(); ++i) {
    const Parameter& parameter = statement.parameters[i];
    if (const Value* given = arguments.find(i, parameter.name)) own->set(parameter.name, *given);
    else if (parameter.fallback) own->set(parameter.name, evaluate(*parameter.fallback, own));
    else own->set(parameter.name, Undefined{"parameter '" + parameter.name + "' was not provided"});
  }
  std::string out;
  run_all(statement.body, own, out);
  return out;
}

void Interpreter::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.parts.empty()) {
    const List items = elements(*this, value);
    MPX_CHECK(items.size() == target.parts.size(), "text", "cannot assign ", items.size(), " values to ",
              target.parts.size(), " names");
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) return scope->set(target.name, value);
  const Value* space = scope->find(target.name);
  MPX_CHECK(space != nullptr && space->is(Kind::space), "text", "'", target.name,
            "' is not a namespace: its attribute cannot be set");
  // Container rules apply to the value. Macros are rejected because their variables could hold the namespace.
  const Value checked = Value::tuple({value});
  MPX_CHECK(!checked.holds_macro(), "text", "a macro cannot be stored in a namespace");
  space->space()->attributes[target.attribute] = value;
}

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  if (expression.op == Op::constant) return expression.constant;
  const DepthGuard deeper(*this);
  charge(1);
  return evaluate_deeper(expression, scope);
}

}  // namespace metroplex::text::jinja
