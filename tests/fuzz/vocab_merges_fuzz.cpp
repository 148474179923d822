// libFuzzer entry: any bytes as GPT-2's two files, vocab.json and merges.txt with a NUL between them; a loaded
// tokenizer must encode and decode without error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "text/json_tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace metroplex;
  const std::string_view both(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(both.find('\0'), both.size());
  const std::string_view vocab = both.substr(0, cut), merges = both.substr(std::min(cut + 1, both.size()));
  try {
    const text::JsonTokenizer tokenizer(text::parse_vocab_and_merges(vocab, merges, "fuzz", {}), {},
                                        text::InvalidUtf8::replace);
    const std::string text = tokenizer.decode(tokenizer.encode("int main() {\n  return 42; }\t\xC3\xA9 in the end"));
    if (text::valid_utf8_prefix(text) != text.size()) std::abort();
  } catch (const base::Error&) {}
  return 0;
}
