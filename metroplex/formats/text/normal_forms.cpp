#include "text/normal_forms.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include <utf8proc.h>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

using CodePoint = utf8proc_int32_t;

// A character of the result. `change` is defined as in the `tokenizers` package: 0 replaces the next input
// character; -n also removes the n characters after it; 1 inserts a character.
struct OutputCharacter {
  CodePoint character;
  int combining_class;
  int change;
};

int to_options(NormalForm form) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  return UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0) | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
}

std::string normalize_fast(std::string_view text, int options) {
  utf8proc_uint8_t* raw = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(raw, std::free);
  MPX_CHECK(size >= 0, "text", "Unicode normalization failed: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(size)};
}

std::vector<OutputCharacter> decompose(std::string_view text, int options) {
  std::vector<OutputCharacter> out;
  const int decomposing = (options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE;
  const auto by_class = [](const OutputCharacter& a, const OutputCharacter& b) {
    return a.combining_class < b.combining_class;
  };
  size_t marks = 0;  // index of the first trailing mark
  for (size_t position = 0; position < text.size();) {
    CodePoint parts[32];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<CodePoint>(next_code_point(text, position)), parts, 32,
                                               static_cast<utf8proc_option_t>(decomposing), &boundary);
    MPX_ASSERT(count >= 0 && count <= 32, "a character has more than 32 parts");
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const int combining_class = utf8proc_get_property(parts[i])->combining_class;
      if (combining_class == 0) {
        std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(marks), out.end(), by_class);
        marks = out.size() + 1;
      }
      out.push_back({parts[i], combining_class, i > 0});
    }
  }
  std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(std::min(marks, out.size())), out.end(), by_class);
  return out;
}

// Returns -1 if the two do not compose.
CodePoint compose_pair(CodePoint first, CodePoint second) {
  CodePoint both[2] = {first, second};
  const auto size =
      utf8proc_normalize_utf32(both, 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  return size == 1 ? both[0] : -1;
}

std::vector<OutputCharacter> compose(const std::vector<OutputCharacter>& parts) {
  constexpr size_t kNone = ~size_t{0};
  std::vector<OutputCharacter> out;
  size_t starter = kNone;
  for (const OutputCharacter& part : parts) {
    // A mark composes with the starter unless a mark of the same or a higher class is between them.
    const bool adjacent = starter != kNone && out.size() == starter + 1;
    const bool reachable = starter != kNone && (adjacent || out.back().combining_class < part.combining_class);
    const CodePoint joined = reachable ? compose_pair(out[starter].character, part.character) : -1;
    if (joined >= 0) {
      out[starter].character = joined;
      out[starter].change += part.change - 1;
      continue;
    }
    if (part.combining_class == 0) starter = out.size();
    out.push_back(part);
  }
  return out;
}

}  // namespace

std::string normalize(std::string_view text, NormalForm form, Sources* sources) {
  const int options = to_options(form);
  std::string out;
  if (is_ascii(text)) {
    append_unchanged(out, sources, text, {0, text.size()});
    return out;
  }
  if (!sources) return normalize_fast(text, options);
  std::vector<OutputCharacter> produced = decompose(text, options);
  if (options & UTF8PROC_COMPOSE) produced = compose(produced);
  size_t position = 0;
  for (const OutputCharacter& part : produced) {
    std::string spelled;
    append_utf8(spelled, static_cast<char32_t>(part.character));
    const bool inserted = part.change > 0;
    append_from(out, sources, spelled, !inserted ? position : position > 0 ? position - 1 : kNoSource);
    for (int i = inserted ? 1 : part.change; i <= 0 && position < text.size(); ++i) next_code_point(text, position);
  }
  return out;
}

TextRange original_range(std::string_view text, const Sources& sources, TextRange rewritten) {
  const size_t first = sources[rewritten.begin], last = sources[rewritten.end - 1];
  const auto begin_of = [&](size_t at) {
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
  };
  TextRange range;
  if (first < text.size()) range.begin = begin_of(first);
  if (last >= text.size()) return range;
  range.end = begin_of(last);
  range.end += code_point_size(static_cast<unsigned char>(text[range.end]));
  return range;
}

}  // namespace metroplex::text
