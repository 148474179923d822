// Unicode normal forms with the source of each character, aligned as in the `tokenizers` package. A composed
// character maps to the first of its parts. Each character of a decomposition maps to the whole character.
#pragma once

#include <string>
#include <string_view>

#include "text/text_range.h"

namespace metroplex::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// `text` must be valid UTF-8. `sources` may be null, which is several times faster; otherwise the function appends to
// it.
std::string normalize(std::string_view text, NormalForm form, Sources* sources);

}  // namespace metroplex::text
