// Trains a sentencepiece model on lines of text. The same lines and options give the same model: of more text than
// max_bytes, every n-th line is taken, and nothing is drawn at random.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::text {

struct SentencePieceTraining {
  std::string model_type = "bpe";          // bpe | unigram
  int64_t vocab_size = 4096;               // with the 3 control and 256 byte pieces
  std::string normalization = "identity";  // or nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf
  double character_coverage = 0.9995;      // the rest becomes byte pieces
  bool split_digits = true;                // every digit is a piece of its own
  int num_threads = 1;
  int64_t max_bytes = int64_t{8} << 20;  // of text that the trainer sees; more costs time and changes little
};

// Ids: unk 0, bos 1, eos 2, then 256 bytes; spaces are kept as they are. `next` gives the next line without its end,
// nullopt at the end of the text. Returns the bytes of a tokenizer.model. Throws base::Error for no text at all, text
// that is not UTF-8, and a vocabulary that the text is too small for.
std::string train_sentencepiece(const SentencePieceTraining& options,
                                const std::function<std::optional<std::string>()>& next);

// The lines of files, one after another; of more than max_bytes in all, every n-th.
std::string train_sentencepiece_on_files(const SentencePieceTraining& options, const std::vector<std::string>& paths);

}  // namespace metroplex::text
