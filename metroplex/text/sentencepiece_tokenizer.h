// A tokenizer.model of the sentencepiece library. A document ends with the model's eos. The file is examined before
// the library sees it (sentencepiece_check.h), because the library trusts it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/bpe_model.h"
#include "text/scratch_pool.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace metroplex::text {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `model` are the bytes of the file and `where` its name in messages. Throws base::Error for a damaged one.
  SentencePieceTokenizer(std::string_view model, const std::string& where, InvalidUtf8 invalid_utf8);
  ~SentencePieceTokenizer() override;

  std::string name() const override { return "sentencepiece"; }
  std::vector<int32_t> encode(std::string_view text) const override;
  // bos before and eos behind, where the model has them.
  std::vector<int32_t> encode_with_special(std::string_view text) const override;
  // Control pieces give no text.
  std::string decode(const std::vector<int32_t>& ids) const override;
  std::string id_to_token(int32_t id) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eod() const override { return eos_; }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> pad() const override { return pad_; }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::vector<int32_t> encode_plain(std::string_view text) const;

  // Our own ways through the common cases, many times faster than the library's: null where it must do.
  std::unique_ptr<UnigramModel> unigram_;
  std::unique_ptr<BpeModel> bpe_;
  bool plain_spaces_ = false;  // normalizing is no more than marking the spaces
  bool dummy_prefix_ = false;
  std::unique_ptr<ScratchPool<BpeScratch>> pool_ = std::make_unique<ScratchPool<BpeScratch>>();
  InvalidUtf8 invalid_utf8_;
  int64_t vocab_size_ = 0;
  std::optional<int32_t> bos_, eos_, pad_;
};

}  // namespace metroplex::text
