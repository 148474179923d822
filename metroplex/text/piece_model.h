// How a sentencepiece model cuts a normalized text into its pieces. Safe from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/sentencepiece_file.h"

namespace metroplex::text {

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // The ids of a text that the model's normalizer has been over.
  virtual std::vector<int32_t> encode(std::string_view normalized) const = 0;
};

// Unigram and BPE models; null for what is left to the library: words, characters, and BPE with unused pieces.
std::unique_ptr<PieceModel> make_piece_model(const SentencePieceFile& file);

}  // namespace metroplex::text
