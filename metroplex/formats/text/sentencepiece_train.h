// Trains a sentencepiece model on lines of text. The result is deterministic: from more text than max_bytes, every
// n-th line is used, without random sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::text {

struct SentencePieceTraining {
  std::string model_type = "bpe";          // bpe | unigram
  int64_t vocab_size = 4096;               // includes the 3 control and 256 byte pieces
  std::string normalization = "identity";  // or nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf
  double character_coverage = 0.9995;      // other characters become byte pieces
  bool split_digits = true;                // every digit is a separate piece
  int num_threads = 1;
  int64_t max_bytes = int64_t{8} << 20;  // limit of training text; more costs time and changes little
};

// Ids: unk 0, bos 1, eos 2, then 256 bytes; spaces stay unchanged. `next` returns the next line without its line end,
// or nullopt at the end. Returns the bytes of a tokenizer.model. Throws base::Error for empty text, text that is not
// UTF-8, and a vocabulary too large for the text.
std::string train_sentencepiece(const SentencePieceTraining& options,
                                const std::function<std::optional<std::string>()>& next);

// Trains on the lines of the files in order; on every n-th line if they exceed max_bytes in total.
std::string train_sentencepiece_on_files(const SentencePieceTraining& options, const std::vector<std::string>& paths);

}  // namespace metroplex::text
