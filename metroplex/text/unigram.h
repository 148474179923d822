// The best segmentation of a text under a unigram model: the pieces whose log probabilities sum to the most (Kudo,
// arXiv:1804.10959), the first of equals kept. Releases of the sentencepiece package differ in how they round the sum
// over a document; this follows 0.2.3: float, and set back to zero where it has passed 100,000.
//
// Rounding can only decide where two segmentations are nearly equal. A part that no piece leads out of (text_cuts.h)
// is remembered when its best segmentation is ahead of any other by more than rounding can make.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "text/byte_trie.h"
#include "text/piece_model.h"
#include "text/scratch_pool.h"
#include "text/text_cuts.h"
#include "text/word_cache.h"

namespace metroplex::text {

class UnigramModel final : public PieceModel {
 public:
  // The pieces need not outlive the call.
  explicit UnigramModel(const SentencePieceFile& file);

  // What no piece covers becomes byte pieces where the model has them, else one unknown id for a run.
  std::vector<int32_t> encode(std::string_view normalized) const override;

 private:
  struct Step {
    float score = 0;
    int32_t begin = -1, piece = -1;
  };
  struct Scratch {
    WordCache cache;
    std::vector<Step> steps;
    std::vector<int32_t> path;  // pieces, last first
    std::vector<std::pair<double, double>> two_best;
  };

  // `score` is that of the document before the part, and then behind it.
  void encode_part(std::string_view part, Scratch& scratch, float& score, std::vector<int32_t>& ids) const;
  void find_best(std::string_view part, float& score, std::vector<Step>& steps) const;
  bool is_certain(std::string_view part, std::vector<std::pair<double, double>>& two_best) const;
  template <class Visit>
  void for_each_piece(std::string_view part, size_t begin, size_t character, Visit visit) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  ByteTrie trie_;
  TextCuts cuts_;
  std::vector<float> scores_;
  std::vector<int32_t> byte_ids_;     // 256, or none
  int32_t unknown_;                   // an id, or one more than the largest in a model without
  std::array<int32_t, 128> ascii_{};  // the piece of one character, or the unknown one
  float certain_limit_ = 0;           // scores of a document that leave a remembered part no room to pass 100,000
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace metroplex::text
