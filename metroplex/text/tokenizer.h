// Text to token ids and back. A Tokenizer is loaded once (load_tokenizer), never changes, and is shared
// by all threads. Ids are those that models see: special tokens are found in the text and become their own id.
// encode() adds nothing around the text, encode_with_special() adds special_tokens().
//
// Text that is not UTF-8: the byte tokenizer takes anything; the others refuse it with the byte offset, or,
// under InvalidUtf8::replace, read U+FFFD in its place (sentencepiece: one per bad byte; tokenizer.json: one per
// maximal bad part, as Python's errors="replace").
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

// Ids with the range of the text that each came from: whole characters, before any normalization. The ranges are the
// offsets of the `tokenizers` package (sentencepiece models: of the sentencepiece package, where each byte piece has
// the range of its character).
struct LocatedIds {
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
};

// Ids that a tokenizer adds before and after a text.
struct SpecialTokens {
  std::vector<int32_t> before, after;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // What kind it is: "bytes", "sentencepiece", "bpe" or "none".
  virtual std::string name() const = 0;

  // Ids of the text alone. Throws base::Error for text this tokenizer cannot read. Safe from any thread.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // The ids of encode, with ranges. Several times slower than encode; the text must be valid UTF-8.
  virtual LocatedIds encode_with_ranges(std::string_view text) const = 0;

  // The ids of a text that a chat template wrote. Control pieces of sentencepiece models (<s>, </s>) are found in it;
  // encode does not find those. For other tokenizers this is encode_with_ranges.
  virtual LocatedIds encode_chat(std::string_view text) const { return encode_with_ranges(text); }

  // The ids that transformers adds by default: by the post-processor of a tokenizer.json; without such a file by
  // add_bos_token and add_eos_token of tokenizer_config.json.
  virtual SpecialTokens special_tokens() const { return {}; }
  // encode() with special_tokens() around it.
  std::vector<int32_t> encode_with_special(std::string_view text) const;

  // Always valid UTF-8, except for the byte tokenizer, which gives back its bytes. Ids that name no token give
  // no text. Safe from any thread.
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;

  // Special tokens left out.
  virtual std::string decode_skip_special(const std::vector<int32_t>& ids) const { return decode(ids); }

  // Whether decode_skip_special leaves the id out.
  virtual bool is_special(int32_t) const { return false; }

  // The token as its file spells it ("" for an id that names none).
  virtual std::string id_to_token(int32_t id) const = 0;
  virtual std::optional<int32_t> token_to_id(std::string_view token) const = 0;

  // One more than the largest id: rows that an embedding needs before padding.
  virtual int64_t vocab_size() const = 0;

  // End of document: what preprocessing puts after every document.
  virtual std::optional<int32_t> eod() const = 0;
  virtual std::optional<int32_t> bos() const { return std::nullopt; }
  virtual std::optional<int32_t> eos() const { return eod(); }
  virtual std::optional<int32_t> pad() const { return std::nullopt; }
};

// Throws base::Error (room "text") that names the file and what is wrong in it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& type, const std::string& model,
                                          const std::string& vocab_file = "", const std::string& merge_file = "",
                                          InvalidUtf8 invalid_utf8 = InvalidUtf8::error);

// The file that `model` means for this type: itself, or what a folder of this name holds.
std::string tokenizer_model_file(const std::string& type, const std::string& model);
// Returns the merges.txt next to GPT-2's vocab.json; empty for other files.
std::string merges_of(const std::string& model_file);

// The names that `type` may have.
const std::vector<std::string>& tokenizer_types();

}  // namespace metroplex::text
