#include "text/jinja/parser.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::text::jinja {

Statements Parser::whole_template() { return until({}, ""); }

// Parses statements up to a tag that begins with one of `ends`. The next token is then that word.
Statements Parser::until(Ends ends, const std::string& opener) {
  const int opened = now().line;
  Statements out;
  if (++depth_ > kMaxStatementDepth) fail("statements are nested too deeply");
  while (now().kind != TokenKind::end) {
    if (now().kind == TokenKind::text) {
      Statement text;
      text.line = now().line;
      text.text = next().text;
      out.push_back(std::move(text));
    } else if (now().kind == TokenKind::open_output) {
      Statement output;
      output.what = StatementKind::output;
      output.line = next().line;
      output.expression = tuple(true);
      if (now().kind != TokenKind::close_output) fail("}} is expected, not " + described());
      next();
      out.push_back(std::move(output));
    } else {
      next();  // {%
      if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return is_name(end); })) {
        --depth_;
        return out;
      }
      statement(out);
      close_block();
    }
  }
  if (!opener.empty()) fail_at(where_, opened, "{% " + opener + " %} has no end tag");
  --depth_;
  return out;
}

void Parser::close_block() {
  if (now().kind != TokenKind::close_block) fail("%} is expected, not " + described());
  next();
}

Statements Parser::body(Ends ends, const std::string& opener) {
  skip_sign(":");
  close_block();
  return until(ends, opener);
}

void Parser::statement(Statements& out) {
  const int line = now().line;
  const std::string word = expect_name();
  Statement made;
  if (word == "if") made = branch(line);
  else if (word == "for") made = loop(line);
  else if (word == "set") made = assign(line);
  else if (word == "macro") made = macro(line);
  else if (word == "call") made = call_block(line);
  else if (word == "filter") made = filter_block(line);
  else if (word == "with") made = scope(line);
  else if (word == "autoescape") made = autoescape(line);
  else if (word == "break") made.what = StatementKind::leave;
  else if (word == "continue") made.what = StatementKind::again;
  else if (word == "generation") {
    made.what = StatementKind::generation;
    made.body = body({"endgeneration"}, word);
    next();
  } else {
    static constexpr std::string_view kOthers[] = {"block", "extends", "include", "import",
                                                   "from",  "do",      "print",   "trans"};
    const bool jinja = std::find(std::begin(kOthers), std::end(kOthers), word) != std::end(kOthers);
    fail_at(where_, line,
            "{% " + word + " %} is " +
                (jinja                   ? "not supported"
                 : word.starts_with("e") ? "not expected here"
                                         : "not a statement"));
  }
  made.line = line;
  out.push_back(std::move(made));
}

Target Parser::one_target(bool attributes) {
  Target made;
  if (skip_sign("(")) {
    made = target("", attributes);
    expect_sign(")");
    return made;
  }
  made.name = expect_name();
  for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
    if (made.name == word) fail("cannot assign to " + made.name);
  }
  if (attributes && skip_sign(".")) made.attribute = expect_name();
  return made;
}

Target Parser::target(std::string_view end_name, bool attributes) {
  if (++depth_ > kMaxStatementDepth) fail("targets are nested too deeply");
  Target first = one_target(attributes);
  --depth_;
  if (!is_sign(",")) return first;
  Target made;
  made.parts.push_back(std::move(first));
  while (skip_sign(",")) {
    if (is_sign("=") || is_sign(")") || now().kind == TokenKind::close_block ||
        (!end_name.empty() && is_name(end_name)))
      break;
    made.parts.push_back(one_target(attributes));
  }
  return made;
}

Statement Parser::branch(int line) {
  Statement made;
  made.what = StatementKind::branch;
  made.line = line;
  while (true) {
    IfBranch& arm = made.arms.emplace_back();
    arm.condition = tuple(false);
    arm.body = body({"elif", "else", "endif"}, "if");
    if (skip_name("elif")) continue;
    if (skip_name("else")) made.arms.push_back({nullptr, body({"endif"}, "else")});
    next();
    return made;
  }
}

Statement Parser::loop(int line) {
  Statement made;
  made.what = StatementKind::loop;
  made.line = line;
  made.target = target("in", false);
  if (!skip_name("in")) fail("'in' is expected in a for, not " + described());
  made.expression = tuple(false, "recursive");
  if (skip_name("if")) made.condition = expression();
  made.recursive = skip_name("recursive");
  made.body = body({"else", "endfor"}, "for");
  if (skip_name("else")) made.otherwise = body({"endfor"}, "else");
  next();
  return made;
}

Statement Parser::assign(int line) {
  Statement made;
  made.line = line;
  made.what = StatementKind::assign;
  made.target = target("", true);
  if (skip_sign("=")) {
    made.expression = tuple(true);
    return made;
  }
  made.what = StatementKind::capture;
  while (is_sign("|")) made.expression = one_filter(std::move(made.expression));
  made.body = body({"endset"}, "set");
  next();
  return made;
}

std::vector<Parameter> Parser::parameters() {
  std::vector<Parameter> made;
  expect_sign("(");
  while (!is_sign(")")) {
    if (!made.empty()) expect_sign(",");
    Parameter& parameter = made.emplace_back();
    parameter.name = expect_name();
    if (skip_sign("=")) parameter.fallback = expression();
    else if (made.size() > 1 && made[made.size() - 2].fallback)
      fail("a parameter without a default cannot follow one with a default");
  }
  expect_sign(")");
  return made;
}

Statement Parser::macro(int line) {
  Statement made;
  made.line = line;
  made.what = StatementKind::macro;
  made.name = expect_name();
  made.parameters = parameters();
  made.body = body({"endmacro"}, "macro");
  next();
  return made;
}

Statement Parser::call_block(int line) {
  Statement made;
  made.line = line;
  made.what = StatementKind::call;
  if (is_sign("(")) made.parameters = parameters();
  made.expression = expression();
  if (made.expression->op != Op::call) fail("a call is expected in {% call %}");
  made.body = body({"endcall"}, "call");
  next();
  return made;
}

Statement Parser::filter_block(int line) {
  Statement made;
  made.line = line;
  made.what = StatementKind::filter;
  --at_;  // `filter` replaces the bar of a filter expression
  made.expression = one_filter(nullptr);
  while (is_sign("|")) made.expression = one_filter(std::move(made.expression));
  made.body = body({"endfilter"}, "filter");
  next();
  return made;
}

Statement Parser::scope(int line) {
  Statement made;
  made.line = line;
  made.what = StatementKind::scope;
  while (now().kind != TokenKind::close_block) {
    if (!made.assignments.empty()) expect_sign(",");
    Target name = one_target(false);
    expect_sign("=");
    made.assignments.emplace_back(std::move(name), expression());
  }
  made.body = body({"endwith"}, "with");
  next();
  return made;
}

// Output is never escaped, so only `autoescape false` is supported; it opens a scope.
Statement Parser::autoescape(int line) {
  const ExpressionPtr escapes = expression();
  if (escapes->op != Op::constant || escapes->constant.truth())
    fail("{% autoescape %} accepts only false, because text is never escaped; use the filter 'escape'");
  Statement made;
  made.line = line;
  made.what = StatementKind::scope;
  made.body = body({"endautoescape"}, "autoescape");
  next();
  return made;
}

Statements parse_template(std::string_view source, const std::string& where) {
  return Parser(template_tokens(source, where), where).whole_template();
}

}  // namespace metroplex::text::jinja
