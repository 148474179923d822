// A byte-pair tokenizer from a Hugging Face tokenizer.json. Added tokens are extracted from the text; the rest is
// normalized, split into words, and each word is merged. Ids and decoded texts are equal to those of the `tokenizers`
// package. The file's truncation and padding settings are ignored.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe_model.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/scratch_pool.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer.h"

namespace metroplex::text {

struct JsonTokenizerParts {
  Normalizer normalizer;
  PreTokenizer pretokenizer;
  Decoder decoder;
  BpeModel model;
  std::vector<AddedToken> added;
  std::vector<int32_t> around;  // special tokens around the text; kText marks the text's position
  // trims_ranges: the post-processor removes white space from both ends of the token ranges. keeps_first_space: a
  // single space before the first token stays in its range.
  bool trims_ranges = false, keeps_first_space = false;
  static constexpr int32_t kText = -1;
};

// `where` names the file in error messages. Throws base::Error for damaged or unsupported content.
// The class of `names` may replace parts of the file (text/tokenizer_class.h).
JsonTokenizerParts parse_tokenizer_json(std::string_view json_text, const std::string& where,
                                        const SpecialNames& names = {});

// Appends the tokens of `names.added` and `names.special` that `parts` lacks. Throws base::Error for an id that is
// already in use, and for an id after a gap, which transformers would change.
void add_tokens(JsonTokenizerParts& parts, const SpecialNames& names);

// Parses GPT-2's two files. The end token is named by `names`, else <|endoftext|>; it gets the next id if the
// vocabulary lacks it.
JsonTokenizerParts parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges,
                                          const std::string& where, const SpecialNames& names);

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(JsonTokenizerParts parts, SpecialNames names, InvalidUtf8 invalid_utf8);
  ~JsonTokenizer() override;

  std::string name() const override { return "bpe"; }
  std::vector<int32_t> encode(std::string_view text) const override;
  LocatedIds encode_with_ranges(std::string_view text) const override;
  SpecialTokens special_tokens() const override { return special_; }
  std::string decode(const std::vector<int32_t>& ids) const override { return decode(ids, false); }
  std::string decode_skip_special(const std::vector<int32_t>& ids) const override { return decode(ids, true); }
  bool is_special(int32_t id) const override;
  std::string id_to_token(int32_t id) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eod() const override { return eos_; }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> pad() const override { return pad_; }

 private:
  struct Scratch;

  std::string decode(const std::vector<int32_t>& ids, bool skip_special) const;
  // `ranges` may be null.
  void encode_valid(std::string_view text, Scratch& scratch, std::vector<int32_t>& out,
                    std::vector<TextRange>* ranges) const;
  void encode_split(std::string_view split, bool first, Scratch& scratch, std::vector<int32_t>& out,
                    std::vector<TextRange>* ranges) const;
  void trim_ranges(LocatedIds& located) const;
  void find_special_ids(const SpecialNames& names, const std::unordered_set<std::string>& special);
  const std::string* spelling(int32_t id) const;

  // An added token as the `tokenizers` package stores it: with its normalized text if it is matched in normalized
  // text.
  struct Stored {
    size_t added;  // index in parts_.added
    std::string text;
    bool skipped;  // by decode_skip_special: the stored text equals that of a special token
  };

  JsonTokenizerParts parts_;
  InvalidUtf8 invalid_utf8_;
  AddedTokenFinder plain_, normalized_;
  std::unordered_map<int32_t, Stored> added_by_id_;
  std::unordered_map<std::string, int32_t> added_ids_;
  int64_t vocab_size_ = 0;
  std::optional<int32_t> bos_, eos_, pad_;
  SpecialTokens special_;
  std::unique_ptr<ScratchPool<Scratch>> pool_;
};

}  // namespace metroplex::text
