#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <mutex>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr uint32_t kMatchLimit = 100'000'000;  // about a second of backtracking
constexpr size_t kJitStackStart = 32 << 10, kJitStackMax = 64 << 20;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using CodePointer = std::unique_ptr<pcre2_code, FreeCode>;

CodePointer compile(const std::string& pattern) {
  int error = 0;
  size_t offset = 0;
  // Oniguruma's ^ and $ match at every line.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  CodePointer code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                                 &offset, context.get()));
  if (!code) {
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(error, message, sizeof message);
    base::throw_error(
        "text", base::concat("the regular expression does not compile: ", reinterpret_cast<const char*>(message),
                             " near '", pattern.substr(offset > 20 ? offset - 20 : 0, 40), "'"));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without a JIT pcre2_match interprets
  return code;
}

bool has_updated_characters(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const auto lead = static_cast<unsigned char>(text[position]);
    if (lead < 0xE0) {
      ++position;  // this branch also skips continuation bytes of two-byte characters
      continue;
    }
    if (find_category_update(next_code_point(text, position))) return true;
  }
  return false;
}

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  State() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMatchLimit);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

// The plain form is several times faster on non-ASCII text. Only texts with updated characters need the other
// form.
struct Regex::Code {
  std::string pattern;
  CodePointer plain;
  mutable std::once_flag updated_once;
  mutable CodePointer updated;

  const pcre2_code* pick(std::string_view text) const {
    if (!has_updated_characters(text)) return plain.get();
    std::call_once(updated_once, [&] { updated = compile(translate_regex(pattern, true)); });
    return updated.get();
  }
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  MPX_CHECK(pattern.size() <= kMaxPatternBytes, "text", "a regular expression has ", pattern.size(),
            " bytes, more than the limit of ", kMaxPatternBytes);
  MPX_CHECK(valid_utf8_prefix(pattern) == pattern.size(), "text", "a regular expression is not UTF-8");
  code_->pattern = pattern;
  code_->plain = compile(translate_regex(pattern, false));
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<TextRange>& matches) const {
  matches.clear();
  if (text.empty()) return;
  const pcre2_code* code = code_->pick(text);
  auto& state = *scratch.state_;
  const size_t* bounds = pcre2_get_ovector_pointer(state.data);
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t position = 0;
  while (position <= text.size()) {
    int found = pcre2_match(code, subject, text.size(), position, PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code, subject, text.size(), position, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                          state.context);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    MPX_CHECK(found >= 0, "text", "the regular expression failed on a text of ", text.size(), " bytes (PCRE2 error ",
              found, "); split the text into shorter documents");
    // \K in a lookahead can end a match before it begins.
    MPX_CHECK(bounds[0] <= bounds[1] && bounds[0] >= position, "text", "the regular expression matches backwards");
    const bool empty = bounds[0] == bounds[1];
    if (!(empty && !matches.empty() && matches.back().end == bounds[0])) matches.push_back({bounds[0], bounds[1]});
    position = bounds[1];
    if (empty) position += position < text.size() ? code_point_size(static_cast<unsigned char>(text[position])) : 1;
  }
}

}  // namespace metroplex::text
