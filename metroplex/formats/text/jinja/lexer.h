// Splits a template into tokens: text between tags, and the contents of tags. White space control follows
// transformers. trim_blocks removes the newline after a block or comment. lstrip_blocks removes the blanks before one
// that begins a line. The signs - and + of a tag override both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace metroplex::text::jinja {

enum class TokenKind { text, open_block, close_block, open_output, close_output, name, string, number, sign, end };

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 1;
  std::string text;  // of text, name, string and sign tokens
  Value number;
};

// Throws base::Error "WHERE, line N: ...". `source` must be UTF-8.
std::vector<Token> template_tokens(std::string_view source, const std::string& where);

[[noreturn]] void fail_at(const std::string& where, int line, const std::string& message);

// Python's str.isspace for a code point, and str.lstrip and str.rstrip.
bool is_space(char32_t c);
std::string_view strip_leading_space(std::string_view text);
std::string_view strip_trailing_space(std::string_view text);

}  // namespace metroplex::text::jinja
