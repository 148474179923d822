// tokenizer.json holds regular expressions in Oniguruma's dialect; PCRE2 matches them here. The two differ in what
// \s, \w, \p{Han} and nested or intersected classes mean; this rewrites a pattern so that PCRE2 means the same.
#pragma once

#include <string>
#include <string_view>

namespace metroplex::text {

// With `updated_unicode` the categories also take in what category_updates() lists. Throws base::Error for what
// cannot be said in PCRE2 (a negated class among others inside a class, nesting deeper than 16).
std::string translate_regex(std::string_view pattern, bool updated_unicode);

// A pattern that matches the string itself.
std::string quote_regex(std::string_view literal);

}  // namespace metroplex::text
