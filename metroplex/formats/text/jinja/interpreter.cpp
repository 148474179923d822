#include "text/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::text::jinja {

class Interpreter::Deeper {
 public:
  Deeper(Interpreter& run) : run_(run) {
    MPX_CHECK(++run_.depth_ <= run_.limits_.depth, "text", "the template is nested deeper than ", run_.limits_.depth,
              " levels; check for endless recursion of a macro");
  }
  ~Deeper() { --run_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

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

void Interpreter::spend(size_t steps) {
  steps_ += static_cast<int64_t>(std::min<size_t>(steps, size_t{1} << 40));
  MPX_CHECK(steps_ <= limits_.steps, "text", "the template takes more than ", limits_.steps,
            " steps; check for an endless loop");
}

void Interpreter::pay_text(size_t bytes) {
  constexpr size_t kMaxText = size_t{1} << 28;
  MPX_CHECK(bytes <= kMaxText, "text", "a text has more than ", kMaxText, " bytes");
  spend(bytes / 4);
}

Value Interpreter::text(std::string text) {
  spend(text.size() / 4);
  return text;
}

std::string Interpreter::text_of(const Value& value) {
  // A byte of a text in a list can take four bytes when escaped.
  if (value.is_string()) pay_text(value.string().size());
  else spend(static_cast<size_t>(16 * value.weight()));
  return to_text(value);
}

Value Interpreter::list(List items) {
  spend(16 * items.size());
  return Value::list(std::move(items));
}

Value Interpreter::generator(List items) {
  spend(16 * items.size());
  return Value::generator(std::move(items));
}

void Interpreter::write(std::string_view text, std::string& out) {
  spend(text.size() / 4);
  out += text;
}

std::shared_ptr<Namespace> Interpreter::new_space() {
  spend(16);
  return std::make_shared<Namespace>();
}

Interpreter::Flow Interpreter::run_all(const Statements& statements, const ScopePtr& scope, std::string& out) {
  const Deeper deeper(*this);
  for (const Statement& statement : statements) {
    line_ = statement.line;
    spend(1);
    if (const Flow flow = run_one(statement, scope, out); flow != Flow::on) return flow;
  }
  return Flow::on;
}

ScopePtr inside(const ScopePtr& scope) {
  const auto made = std::make_shared<Scope>();
  made->parent = scope;
  return made;
}

std::string Interpreter::captured(const Statements& body, const ScopePtr& scope) {
  std::string out;
  run_all(body, inside(scope), out);
  return out;
}

Interpreter::Flow Interpreter::run_one(const Statement& s, const ScopePtr& scope, std::string& out) {
  switch (s.what) {
    case What::text:
      write(s.text, out);
      break;
    case What::output: {
      const Value value = evaluate(*s.expression, scope);
      value.is_string() ? write(value.string(), out) : write(text_of(value), out);
      break;
    }
    case What::branch:
      for (const Arm& arm : s.arms) {
        if (!arm.condition || evaluate(*arm.condition, scope).truth()) return run_all(arm.body, scope, out);
      }
      break;
    case What::loop:
      return run_loop(s, scope, evaluate(*s.expression, scope), 1, out);
    case What::assign:
      assign(s.target, evaluate(*s.expression, scope), scope);
      break;
    case What::capture: {
      const Value value = captured(s.body, scope);
      assign(s.target, s.expression ? filtered(*s.expression, scope, &value) : value, scope);
      break;
    }
    case What::macro:
      scope->set(s.name, closure(s.name, s, scope));
      break;
    case What::call:
      run_call(s, scope, out);
      break;
    case What::filter: {
      const Value value = captured(s.body, scope);
      write(text_of(filtered(*s.expression, scope, &value)), out);
      break;
    }
    case What::scope: {
      const ScopePtr own = inside(scope);
      std::vector<Value> values;
      for (const auto& assignment : s.assignments) values.push_back(evaluate(*assignment.second, scope));
      for (size_t i = 0; i < values.size(); ++i) assign(s.assignments[i].first, values[i], own);
      return run_all(s.body, own, out);
    }
    case What::generation:
      run_generation(s, scope, out);
      break;
    case What::leave:
      return Flow::leave;
    case What::again:
      return Flow::again;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_loop(const Statement& s, const ScopePtr& scope, const Value& over, int64_t depth,
                                        std::string& out) {
  List items = elements(*this, over);
  if (s.condition) {
    List kept;
    for (const Value& item : items) {
      const ScopePtr own = inside(scope);
      assign(s.target, item, own);
      if (evaluate(*s.condition, own).truth()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = std::make_shared<const List>(std::move(items));
  loop->depth = depth;
  if (s.recursive) loop->statement = &s, loop->around = scope;
  for (; loop->index < loop->items->size(); ++loop->index) {
    const ScopePtr own = inside(scope);
    own->set("loop", loop);
    assign(s.target, (*loop->items)[loop->index], own);
    if (run_all(s.body, own, out) == Flow::leave) break;
  }
  if (loop->items->empty()) return run_all(s.otherwise, inside(scope), out);
  return Flow::on;
}

// loop(items) in a recursive loop.
Value Interpreter::recurse(const Loop& loop, const Arguments& given) {
  MPX_CHECK(loop.statement != nullptr, "text", "loop() is called in a loop that is not marked 'recursive'");
  given.only(1, {"iterable"});
  std::string out;
  run_loop(*loop.statement, loop.around, given.need(0, "iterable"), loop.depth + 1, out);
  return out;
}

void Interpreter::run_generation(const Statement& s, const ScopePtr& scope, std::string& out) {
  const size_t begin = out.size();
  const bool here = &out == top_;
  write(captured(s.body, scope), out);
  if (here) rendered_.generated.emplace_back(begin, out.size());
  else rendered_.generated_elsewhere = true;
}

void Interpreter::run_call(const Statement& s, const ScopePtr& scope, std::string& out) {
  const Value caller = closure("caller", s, scope);
  write(text_of(called(*s.expression, scope, &caller)), out);
}

// A macro, or the body of a call block, with the surrounding variables.
Value Interpreter::closure(const std::string& name, const Statement& s, const ScopePtr& scope) {
  spend(16);
  closed_over_.push_back(scope);
  auto made = std::make_shared<Callable>();
  made->name = name;
  made->is_macro = true;
  for (const Parameter& parameter : s.parameters) made->parameters.push_back(parameter.name);
  made->call = [this, &s, scope](Arguments& arguments) { return call_closure(s, scope, arguments); };
  return Value(std::shared_ptr<const Callable>(std::move(made)));
}

Value Interpreter::call_closure(const Statement& s, const ScopePtr& outer, Arguments& arguments) {
  const ScopePtr own = inside(outer);
  List more;
  Dict others;
  for (size_t i = s.parameters.size(); i < arguments.positional.size(); ++i) more.push_back(arguments.positional[i]);
  for (const auto& argument : arguments.named) {
    const std::string& name = argument.first;
    const bool known = std::any_of(s.parameters.begin(), s.parameters.end(),
                                   [&name](const Parameter& parameter) { return parameter.name == name; });
    if (name == "caller" && !known) own->set(name, argument.second);
    else if (!known) others.set(name, argument.second);
  }
  own->set("varargs", Value::tuple(std::move(more)));
  own->set("kwargs", Value::dict(std::move(others)));
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const Parameter& parameter = s.parameters[i];
    if (const Value* given = arguments.find(i, parameter.name)) own->set(parameter.name, *given);
    else if (parameter.fallback) own->set(parameter.name, evaluate(*parameter.fallback, own));
    else own->set(parameter.name, Undefined{"parameter '" + parameter.name + "' was not provided"});
  }
  std::string out;
  run_all(s.body, own, out);
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

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
  if (e.op == Op::constant) return e.constant;
  const Deeper deeper(*this);
  spend(1);
  return evaluate_deeper(e, scope);
}

}  // namespace metroplex::text::jinja
