// A tokenizer.model of the sentencepiece library. A document ends with the model's eos. Ids and texts are those of
// the package's release 0.2.3, whichever release of the library is installed: it trains models and cuts text into
// words or characters (and knows no control pieces in text there), the rest is done here, several times faster.
// Tokens that the files next to the model add (SpecialNames::added) are cut out of the text first. The text between
// two of them gets no space in front, as in LlamaTokenizer of transformers 5.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_trie.h"
#include "text/piece_model.h"
#include "text/sentencepiece_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_files.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace metroplex::text {

// What a sentencepiece model does to a text before cutting it: characters become others (NFKC and such, as a table in
// the file), spaces become U+2581, one more is put in front, extra ones go. Symbols that the user has defined are
// left as they are. As the package's release 0.2.3 does it.

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class SentencePieceNormalizer {
 public:
  // `verbatim` need not outlive the call, but `spec` points into the file, which is copied.
  SentencePieceNormalizer(const NormalizerSpec& spec, bool space_as_suffix,
                          const std::vector<std::string_view>& verbatim);

  // Any bytes; the result is valid UTF-8. One U+FFFD stands for every byte that is not part of valid UTF-8.
  std::string apply(std::string_view text) const { return apply(text, nullptr, {}); }
  // The position of the text in a longer one. Only the first text gets a space in front, only the last at the end.
  struct Position {
    bool first = true, last = true;
  };
  // Also gives for each byte of the result the place in `text` where its rule begins, and as a last entry the place
  // where the rules end. A space that is put in front has the place of the byte after it.
  std::string apply(std::string_view text, std::vector<size_t>* places, Position position) const;

 private:
  struct Prefix {
    std::string_view text;  // what it becomes
    size_t bytes = 0;
  };
  Prefix normalize_prefix(std::string_view text) const;
  Prefix longest_rule(std::string_view text) const;
  size_t append_plain(std::string_view text, size_t at, bool& after_space, std::string& out) const;
  void find_plain_bytes();

  std::vector<uint32_t> units_;
  std::string replacements_;
  ByteTrie verbatim_;
  std::string_view space_;
  bool dummy_prefix_, dummy_suffix_, remove_extra_spaces_;
  // Characters of ASCII that no rule and no symbol of the user's begins with, whatever of ASCII stands behind them.
  std::array<bool, 128> plain_{};
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `model` are the bytes of the file and `where` its name in messages. Throws base::Error for a damaged one.
  SentencePieceTokenizer(std::string_view model, const std::string& where, const SpecialNames& names,
                         InvalidUtf8 invalid_utf8);
  ~SentencePieceTokenizer() override;

  std::string name() const override { return "sentencepiece"; }
  std::vector<int32_t> encode(std::string_view text) const override;
  LocatedIds encode_with_ranges(std::string_view text) const override;
  LocatedIds encode_chat(std::string_view text) const override;
  SpecialTokens special_tokens() const override { return special_; }
  // Control pieces give no text.
  std::string decode(const std::vector<int32_t>& ids) const override { return decode(ids, false); }
  std::string decode_skip_special(const std::vector<int32_t>& ids) const override { return decode(ids, true); }
  bool is_special(int32_t id) const override;
  std::string id_to_token(int32_t id) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  std::optional<int32_t> eod() const override { return eos_; }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> pad() const override { return pad_; }

 private:
  struct OwnPiece {
    std::string text;
    PieceType type;
    bool added_special = false;
  };
  SentencePieceTokenizer(const SentencePieceFile& file, const SpecialNames& names, InvalidUtf8 invalid_utf8);
  void find_special_ids(const SentencePieceFile& file, const SpecialNames& names);
  void add_tokens(const SpecialNames& names);
  std::string decode(const std::vector<int32_t>& ids, bool skip_special) const;
  LocatedIds encode_around(const AddedTokenFinder& finder, std::string_view text) const;
  LocatedIds encode_range(std::string_view text, SentencePieceNormalizer::Position position) const;
  LocatedIds settle_unused(const LocatedIds& found) const;
  LocatedIds encode_by_library(std::string_view text) const;
  void check_utf8(std::string_view text) const;
  void load_library(std::string_view model, const std::string& where);

  std::vector<OwnPiece> pieces_;  // by id; those of the model, then added tokens
  AddedTokenFinder added_;        // found in any text
  AddedTokenFinder marks_;        // added tokens and control pieces; found in chats
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unique_ptr<PieceModel> model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> library_;  // where there is no model_
  SentencePieceNormalizer normalizer_;
  std::optional<SentencePieceNormalizer> denormalizer_;
  std::string unknown_text_;
  bool drop_first_space_, drop_leading_spaces_;  // when decoding
  bool byte_fallback_;
  InvalidUtf8 invalid_utf8_;
  std::optional<int32_t> unknown_, bos_, eos_, pad_;
  SpecialTokens special_;
};

}  // namespace metroplex::text
