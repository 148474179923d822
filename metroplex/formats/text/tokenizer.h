// Converts text to token ids and back. A Tokenizer is loaded once (load_tokenizer), immutable, and shared by all
// threads. Special tokens are matched in the text and become their own id. encode() adds no ids around the text;
// encode_with_special() adds special_tokens().
//
// Text that is not UTF-8: the byte tokenizer accepts any bytes. Under InvalidUtf8::error the others throw with the
// byte offset; under InvalidUtf8::replace they read U+FFFD. Sentencepiece replaces each bad byte; tokenizer.json
// replaces each maximal bad part, as Python's errors="replace".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_range.h"

namespace metroplex::text {

enum class InvalidUtf8 { error, replace };

// "error" or "replace"; anything else throws base::Error.
InvalidUtf8 invalid_utf8_from_name(const std::string& name);

// Ids with the range of text of each: whole characters, before any normalization. The ranges are the offsets of the
// `tokenizers` package. For sentencepiece models they are those of the sentencepiece package, where each byte piece
// has the range of its character.
struct LocatedIds {
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
};

struct SpecialTokens {
  std::vector<int32_t> before, after;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns "bytes", "sentencepiece", "bpe" or "none".
  virtual std::string name() const = 0;

  // Ids of the text alone. Throws base::Error for text that this tokenizer cannot encode. Thread-safe.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // The ids of encode, with ranges. Several times slower than encode; the text must be valid UTF-8.
  virtual LocatedIds encode_with_ranges(std::string_view text) const = 0;

  // Encodes the output of a chat template. For sentencepiece models it matches control pieces (<s>, </s>), which
  // encode does not. For other tokenizers it is encode_with_ranges.
  virtual LocatedIds encode_chat(std::string_view text) const { return encode_with_ranges(text); }

  // The ids that transformers adds by default. They come from the post-processor of a tokenizer.json, else from
  // add_bos_token and add_eos_token of tokenizer_config.json.
  virtual SpecialTokens special_tokens() const { return {}; }
  std::vector<int32_t> encode_with_special(std::string_view text) const;

  // Returns valid UTF-8, except for the byte tokenizer, which returns its bytes. Ids without a token decode to no
  // text. Thread-safe.
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;

  virtual std::string decode_skip_special(const std::vector<int32_t>& ids) const { return decode(ids); }

  virtual bool is_special(int32_t) const { return false; }

  // Returns the token as spelled in its file; "" for an id without a token.
  virtual std::string id_to_token(int32_t id) const = 0;
  virtual std::optional<int32_t> token_to_id(std::string_view token) const = 0;

  // The largest id + 1: the rows of an embedding before padding.
  virtual int64_t vocab_size() const = 0;

  // End of document; preprocessing appends it to every document.
  virtual std::optional<int32_t> eod() const = 0;
  virtual std::optional<int32_t> bos() const { return std::nullopt; }
  virtual std::optional<int32_t> eos() const { return eod(); }
  virtual std::optional<int32_t> pad() const { return std::nullopt; }
};

// Throws base::Error (module "text") with the file and the error in it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& type, const std::string& model,
                                          const std::string& vocab_file = "", const std::string& merge_file = "",
                                          InvalidUtf8 invalid_utf8 = InvalidUtf8::error);

// Returns `model`; if it is a folder, the matching file inside it.
std::string tokenizer_model_file(const std::string& type, const std::string& model);
// Returns the merges.txt next to GPT-2's vocab.json; empty for other files.
std::string find_merges_file(const std::string& model_file);

const std::vector<std::string>& tokenizer_types();

}  // namespace metroplex::text
