// A tokenizer.model of the sentencepiece library. A document ends with the model's eos. Ids and texts equal those
// of release 0.2.3 of the package with any installed release of the library. The library trains models, and
// encodes with word and character models (without control pieces in text). This class does everything else,
// several times faster. Tokens of the files next to the model (SpecialNames::added) are extracted from the text
// first. As in LlamaTokenizer of transformers 5, the text between two of them gets no leading space.
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

// The normalizer of a sentencepiece model. It replaces characters by a table in the file (NFKC and similar), writes
// spaces as U+2581, adds a leading space and removes extra spaces. User-defined symbols stay unchanged. Equal to
// release 0.2.3 of the package.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class SentencePieceNormalizer {
 public:
  // `verbatim` need not outlive the call. `spec` points into the file; its tables are copied.
  SentencePieceNormalizer(const NormalizerSpec& spec, bool space_as_suffix,
                          const std::vector<std::string_view>& verbatim);

  // Accepts any bytes; the result is valid UTF-8. U+FFFD replaces every byte that is not part of valid UTF-8.
  std::string apply(std::string_view text) const { return apply(text, nullptr, {}); }
  // The position of the text in a longer one. Only the first text gets a leading space, only the last a trailing one.
  struct Position {
    bool first = true, last = true;
  };
  // `places` receives, per byte of the result, the offset in `text` where its rule begins. Its last entry is the
  // offset where the rules end. An inserted leading space has the offset of the byte after it.
  std::string apply(std::string_view text, std::vector<size_t>* places, Position position) const;

 private:
  struct Prefix {
    std::string_view text;  // the replacement
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
  // ASCII characters that start no rule and no user-defined symbol, for any following ASCII character.
  std::array<bool, 128> plain_{};
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `model`: the bytes of the file. `where`: its name in error messages. Throws base::Error for a damaged file.
  SentencePieceTokenizer(std::string_view model, const std::string& where, const SpecialNames& names,
                         InvalidUtf8 invalid_utf8);
  ~SentencePieceTokenizer() override;

  std::string name() const override { return "sentencepiece"; }
  std::vector<int32_t> encode(std::string_view text) const override;
  LocatedIds encode_with_ranges(std::string_view text) const override;
  LocatedIds encode_chat(std::string_view text) const override;
  SpecialTokens special_tokens() const override { return special_; }
  // Control pieces decode to no text.
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
  LocatedIds resolve_unused(const LocatedIds& found) const;
  LocatedIds encode_by_library(std::string_view text) const;
  void check_utf8(std::string_view text) const;
  void load_library(std::string_view model, const std::string& where);

  std::vector<OwnPiece> pieces_;  // by id; the model's pieces, then added tokens
  AddedTokenFinder added_;        // matched in any text
  AddedTokenFinder marks_;        // added tokens and control pieces; matched in chats
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unique_ptr<PieceModel> model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> library_;  // only if model_ is null
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
