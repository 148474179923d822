// Tokenizers that need no file.
#pragma once

#include "text/tokenizer.h"

namespace metroplex::text {

// Every byte is its own id; 256 is the end of a document. Accepts any bytes and decodes to the same bytes.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::vector<int32_t> encode(std::string_view text) const override;
  LocatedIds encode_with_ranges(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  std::string id_to_token(int32_t id) const override;  // <0xNN>, <eod>
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  int64_t vocab_size() const override { return 257; }
  std::optional<int32_t> eod() const override { return 256; }
};

// The text is decimal ids separated by white space. The last id of the vocabulary is the end of a document.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(int64_t vocab_size);
  std::string name() const override { return "none"; }
  std::vector<int32_t> encode(std::string_view text) const override;
  LocatedIds encode_with_ranges(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  std::string id_to_token(int32_t id) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eod() const override { return static_cast<int32_t>(vocab_size_ - 1); }

 private:
  int64_t vocab_size_;
};

}  // namespace metroplex::text
