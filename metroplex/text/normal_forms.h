// Unicode normal forms with the source of each character, as the `tokenizers` package aligns them: a composed
// character stands for the first of its parts, and each character of a decomposition for the whole.
#pragma once

#include <string>
#include <string_view>

#include "text/text_range.h"

namespace metroplex::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// `text` must be valid UTF-8. Appends to `sources`, which may be null; without it the function is several times
// faster.
std::string normalize(std::string_view text, NormalForm form, Sources* sources);

}  // namespace metroplex::text
