// Recursive descent parser with Jinja's operator precedence. parser_expressions.cpp implements the expressions,
// parser_statements.cpp the statements.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace metroplex::text::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {}
  Statements whole_template();

 private:
  struct CallArguments {
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> named;
  };
  class DepthGuard;  // counts the nesting depth of calls

  const Token& now() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next();
  bool is_sign(std::string_view sign) const { return now().kind == TokenKind::sign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  bool skip_sign(std::string_view sign);
  bool skip_name(std::string_view name);
  void expect_sign(std::string_view sign);
  std::string expect_name();
  [[noreturn]] void fail(const std::string& message) const { fail_at(where_, now().line, message); }
  std::string described() const;

  // Expressions (parser_expressions.cpp).
  ExpressionPtr make(Op op, int line, std::string name = "");
  void adopt(Expression& parent, ExpressionPtr child);
  ExpressionPtr pair(Op op, std::string name, ExpressionPtr left, ExpressionPtr right);
  ExpressionPtr expression();
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr sum();
  ExpressionPtr parse_concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr parse_list(std::string_view close, Op op);
  ExpressionPtr dict();
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr parse_filters(ExpressionPtr value);
  ExpressionPtr one_filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr callee);
  void call_arguments(Expression& call);
  // One expression, or a tuple if commas follow. `choices`: accepts "a if b else c" as an item.
  ExpressionPtr tuple(bool choices, std::string_view end_name = "", bool may_be_empty = false);

  // Statements (parser_statements.cpp).
  using Ends = std::initializer_list<std::string_view>;
  Statements until(Ends ends, const std::string& opener);
  void statement(Statements& out);
  Statements body(Ends ends, const std::string& opener);
  void close_block();
  Target target(std::string_view end_name, bool attributes);
  Target one_target(bool attributes);
  Statement branch(int line);
  Statement loop(int line);
  Statement assign(int line);
  Statement macro(int line);
  Statement call_block(int line);
  Statement filter_block(int line);
  Statement scope(int line);
  Statement autoescape(int line);
  std::vector<Parameter> parameters();

  std::vector<Token> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace metroplex::text::jinja
