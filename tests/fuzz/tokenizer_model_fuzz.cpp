// libFuzzer entry: any bytes as a tokenizer.model; a loaded tokenizer must encode and decode without error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace metroplex;
  const std::string_view model(reinterpret_cast<const char*>(data), size);
  try {
    const text::SentencePieceTokenizer tokenizer(model, "fuzz", {}, text::InvalidUtf8::replace);
    const auto ids =
        tokenizer.encode_with_special("int main() {\n  return 42; }\t\xC3\xA9\xF0\x9F\x98\x80 cafe\xCC\x81 \xFF");
    const std::string text = tokenizer.decode(ids);
    if (text::valid_utf8_prefix(text) != text.size()) std::abort();
  } catch (const base::Error&) {}
  return 0;
}
