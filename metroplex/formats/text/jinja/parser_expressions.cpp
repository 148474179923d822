#include "text/jinja/parser.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::text::jinja {

class Parser::DepthGuard {
 public:
  DepthGuard(Parser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxExpressionDepth) parser_.fail("expressions are nested too deeply");
  }
  ~DepthGuard() { --parser_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Parser& parser_;
};

Token Parser::next() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }

bool Parser::skip_sign(std::string_view sign) {
  if (!is_sign(sign)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

std::string Parser::described() const {
  switch (now().kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::close_block:
      return "%}";
    case TokenKind::close_output:
      return "}}";
    case TokenKind::string:
      return "a string";
    case TokenKind::number:
      return "a number";
    default:
      return "'" + now().text + "'";
  }
}

void Parser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) fail(base::concat("'", sign, "' is expected, not ", described()));
}

std::string Parser::expect_name() {
  if (now().kind != TokenKind::name) fail("a name is expected, not " + described());
  return next().text;
}

ExpressionPtr Parser::make(Op op, int line, std::string name) {
  auto made = std::make_unique<Expression>();
  made->op = op;
  made->line = line;
  made->name = std::move(name);
  return made;
}

void Parser::adopt(Expression& parent, ExpressionPtr child) {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxExpressionDepth) fail("an expression has too many parts");
  parent.children.push_back(std::move(child));
}

ExpressionPtr Parser::pair(Op op, std::string name, ExpressionPtr left, ExpressionPtr right) {
  auto made = make(op, left->line, std::move(name));
  adopt(*made, std::move(left));
  adopt(*made, std::move(right));
  return made;
}

ExpressionPtr Parser::expression() {
  const DepthGuard deeper(*this);
  ExpressionPtr value = either();
  while (skip_name("if")) {
    auto choice = make(Op::choice, value->line);
    adopt(*choice, std::move(value));
    adopt(*choice, either());
    adopt(*choice, skip_name("else") ? expression() : nullptr);
    value = std::move(choice);
  }
  return value;
}

ExpressionPtr Parser::either() {
  ExpressionPtr left = both();
  while (skip_name("or")) left = pair(Op::either, "", std::move(left), both());
  return left;
}

ExpressionPtr Parser::both() {
  ExpressionPtr left = parse_not();
  while (skip_name("and")) left = pair(Op::both, "", std::move(left), parse_not());
  return left;
}

ExpressionPtr Parser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const DepthGuard deeper(*this);
  auto made = make(Op::invert, next().line);
  adopt(*made, parse_not());
  return made;
}

ExpressionPtr Parser::parse_comparison() {
  static constexpr std::string_view kSigns[] = {"==", "!=", ">", ">=", "<", "<="};
  ExpressionPtr first = sum();
  ExpressionPtr made;
  while (true) {
    std::string word;
    const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns), [&](auto s) { return is_sign(s); });
    if (sign != std::end(kSigns)) {
      word = next().text;
    } else if (skip_name("in")) {
      word = "in";
    } else if (is_name("not") && look().kind == TokenKind::name && look().text == "in") {
      next();
      next();
      word = "not in";
    } else {
      return made ? std::move(made) : std::move(first);
    }
    if (!made) {
      made = make(Op::compare, first->line);
      adopt(*made, std::move(first));
    }
    made->words.push_back(word);
    adopt(*made, sum());
  }
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = parse_concat();
  while (is_sign("+") || is_sign("-")) {
    const std::string sign = next().text;
    left = pair(Op::arithmetic, sign, std::move(left), parse_concat());
  }
  return left;
}

ExpressionPtr Parser::parse_concat() {
  ExpressionPtr first = product();
  if (!is_sign("~")) return first;
  auto made = make(Op::concat, first->line);
  adopt(*made, std::move(first));
  while (skip_sign("~")) adopt(*made, product());
  return made;
}

ExpressionPtr Parser::product() {
  ExpressionPtr left = power();
  while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
    const std::string sign = next().text;
    left = pair(Op::arithmetic, sign, std::move(left), power());
  }
  return left;
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary(true);
  while (skip_sign("**")) left = pair(Op::arithmetic, "**", std::move(left), unary(true));
  return left;
}

ExpressionPtr Parser::unary(bool with_filters) {
  const DepthGuard deeper(*this);
  ExpressionPtr value;
  if (is_sign("-") || is_sign("+")) {
    const Token sign = next();
    value = make(sign.text == "-" ? Op::negate : Op::plus, sign.line);
    adopt(*value, unary(false));
  } else {
    value = primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::primary() {
  const int line = now().line;
  const auto constant = [&](Value value) {
    auto made = make(Op::constant, line);
    made->constant = std::move(value);
    return made;
  };
  if (now().kind == TokenKind::name) {
    std::string name = next().text;
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(None{});
    return make(Op::name, line, std::move(name));
  }
  if (now().kind == TokenKind::string) {
    std::string text;
    while (now().kind == TokenKind::string) text += next().text;
    return constant(std::move(text));
  }
  if (now().kind == TokenKind::number) return constant(next().number);
  if (skip_sign("(")) {
    ExpressionPtr value = tuple(true, "", true);
    expect_sign(")");
    return value;
  }
  if (skip_sign("[")) return parse_list("]", Op::list);
  if (skip_sign("{")) return dict();
  fail("a value is expected, not " + described());
}

ExpressionPtr Parser::parse_list(std::string_view close, Op op) {
  auto made = make(op, now().line);
  while (!is_sign(close)) {
    if (!made->children.empty()) {
      expect_sign(",");
      if (is_sign(close)) break;
    }
    adopt(*made, expression());
  }
  expect_sign(close);
  return made;
}

ExpressionPtr Parser::dict() {
  auto made = make(Op::dict, now().line);
  while (!is_sign("}")) {
    if (!made->children.empty()) {
      expect_sign(",");
      if (is_sign("}")) break;
    }
    adopt(*made, expression());
    expect_sign(":");
    adopt(*made, expression());
  }
  expect_sign("}");
  return made;
}

ExpressionPtr Parser::tuple(bool choices, std::string_view end_name, bool may_be_empty) {
  const DepthGuard deeper(*this);
  const auto at_end = [&] {
    const TokenKind kind = now().kind;
    return kind == TokenKind::close_block || kind == TokenKind::close_output || is_sign(")") ||
           (!end_name.empty() && is_name(end_name));
  };
  auto made = make(Op::tuple, now().line);
  bool commas = false;
  while (!at_end()) {
    adopt(*made, choices ? expression() : either());
    if (!skip_sign(",")) break;
    commas = true;
  }
  if (commas) return made;
  if (made->children.size() == 1) return std::move(made->children[0]);
  if (!may_be_empty) fail("an expression is expected, not " + described());
  return made;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr value) {
  while (true) {
    if (is_sign(".") || is_sign("[")) value = subscript(std::move(value));
    else if (is_sign("(")) value = call(std::move(value));
    else return value;
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr value) {
  const Token sign = next();
  if (sign.text == "." && now().kind == TokenKind::name) {
    auto made = make(Op::attribute, sign.line, next().text);
    adopt(*made, std::move(value));
    return made;
  }
  auto made = make(Op::item, sign.line);
  adopt(*made, std::move(value));
  if (sign.text == ".") {
    if (now().kind != TokenKind::number || !now().number.is(Kind::integer))
      fail("a name or a number is expected after '.'");
    adopt(*made, primary());
    return made;
  }
  const auto part = [&] { return is_sign(":") || is_sign("]") ? nullptr : expression(); };
  ExpressionPtr first = part();
  if (is_sign(":")) {
    made->op = Op::slice;
    adopt(*made, std::move(first));
    next();
    adopt(*made, part());
    adopt(*made, skip_sign(":") ? part() : nullptr);
  } else {
    if (!first) fail("an index is expected in []");
    if (is_sign(",")) fail("an index of several parts, [a, b], is not supported");
    adopt(*made, std::move(first));
  }
  expect_sign("]");
  return made;
}

ExpressionPtr Parser::parse_filters(ExpressionPtr value) {
  while (true) {
    if (is_sign("|")) value = one_filter(std::move(value));
    else if (is_name("is")) value = test(std::move(value));
    else if (is_sign("(")) value = call(std::move(value));
    else return value;
  }
}

ExpressionPtr Parser::one_filter(ExpressionPtr value) {
  const int line = next().line;  // the bar, or the keyword filter
  auto made = make(Op::filter, line, expect_name());
  while (skip_sign(".")) made->name += "." + expect_name();
  adopt(*made, std::move(value));
  if (is_sign("(")) call_arguments(*made);
  return made;
}

ExpressionPtr Parser::test(ExpressionPtr value) {
  const int line = next().line;
  const bool negated = skip_name("not");
  auto made = make(Op::test, line, expect_name());
  adopt(*made, std::move(value));
  const bool operand = now().kind == TokenKind::string || now().kind == TokenKind::number || is_sign("[") ||
                       is_sign("{") ||
                       (now().kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_sign("(")) {
    call_arguments(*made);
  } else if (operand) {
    if (is_name("is")) fail("two consecutive tests with 'is' are not supported; write 'and' between them");
    adopt(*made, parse_postfix(primary()));
  }
  if (!negated) return made;
  auto invert = make(Op::invert, line);
  adopt(*invert, std::move(made));
  return invert;
}

ExpressionPtr Parser::call(ExpressionPtr callee) {
  auto made = make(Op::call, now().line);
  adopt(*made, std::move(callee));
  call_arguments(*made);
  return made;
}

void Parser::call_arguments(Expression& call) {
  expect_sign("(");
  bool first = true;
  while (!is_sign(")")) {
    if (!first) {
      expect_sign(",");
      if (is_sign(")")) break;
    }
    first = false;
    if (is_sign("*") || is_sign("**")) {
      ExpressionPtr& more = next().text == "*" ? call.more_positional : call.more_named;
      if (more || (call.more_named && &more != &call.more_named)) fail("'*' or '**' is not expected here");
      more = expression();
      call.depth = std::max(call.depth, more->depth + 1);
    } else if (now().kind == TokenKind::name && look().kind == TokenKind::sign && look().text == "=") {
      std::string name = next().text;
      next();
      ExpressionPtr value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      if (call.more_named) fail("a named argument cannot follow '**'");
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty() || call.more_positional || call.more_named)
        fail("a positional argument cannot follow a named argument, '*' or '**'");
      adopt(call, expression());
    }
  }
  expect_sign(")");
}

}  // namespace metroplex::text::jinja
