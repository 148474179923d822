// A parsed template: expressions and statements as plain data, each with its line. The parser bounds the depth, so
// that tree traversals may recurse.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace metroplex::text::jinja {

enum class Op {
  constant,
  name,
  list,        // children
  tuple,       // children
  dict,        // children: key, value, key, value, ...
  attribute,   // children[0] . name
  item,        // children[0] [ children[1] ]
  slice,       // children[0] [ from : to : step ]; null for omitted ones
  call,        // children[0] ( children[1..], named )
  filter,      // children[0] | name ( children[1..], named ); children[0] is null in a filter block
  test,        // children[0] is name ( children[1..], named )
  negate,      // - children[0]
  plus,        // + children[0]
  invert,      // not children[0]
  both,        // and
  either,      // or
  choice,      // children[0] if children[1] else children[2] (null: undefined)
  compare,     // children[0] word[0] children[1] word[1] children[2] ...
  arithmetic,  // children[0] name children[1]: + - * / // % **
  concat       // children joined by ~
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  Op op = Op::constant;
  int line = 0, depth = 1;
  std::string name;
  std::vector<std::string> words;
  Value constant;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // of a call: *more_positional, **more_named; null if absent
};

// An assignment target: a name, an attribute of a namespace, or several targets.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;  // not empty: a tuple
};

enum class StatementKind {
  text,
  output,      // expression
  branch,      // if: arms; an arm without a condition is the else
  loop,        // for target in expression if condition [recursive]: body, otherwise
  assign,      // set target = expression
  capture,     // set target [| filter]: body
  macro,       // macro name(parameters): body
  call,        // call (parameters) expression: body
  filter,      // filter expression: body
  scope,       // with assignments: body
  generation,  // the assistant's output: body
  leave,       // break
  again        // continue
};

struct Statement;
using Statements = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr fallback;
};

struct IfBranch {
  ExpressionPtr condition;
  Statements body;
};

struct Statement {
  StatementKind what = StatementKind::text;
  int line = 0;
  std::string text, name;
  bool recursive = false;  // of a loop
  Target target;
  ExpressionPtr expression, condition;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  std::vector<IfBranch> arms;
  Statements body, otherwise;
};

inline constexpr int kMaxExpressionDepth = 120, kMaxStatementDepth = 60;

// Throws base::Error "WHERE, line N: ..." for a syntax error or an unsupported construct.
Statements parse_template(std::string_view source, const std::string& where);

}  // namespace metroplex::text::jinja
