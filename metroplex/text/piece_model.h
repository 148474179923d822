// How a sentencepiece model cuts a normalized text into its pieces. Safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/bpe_model.h"
#include "text/byte_trie.h"
#include "text/scratch_pool.h"
#include "text/sentencepiece_file.h"
#include "text/text_cuts.h"
#include "text/text_range.h"
#include "text/word_cache.h"

namespace metroplex::text {

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // The ids of a text that the model's normalizer has been over. `ranges`, which may be null, gets the bytes of
  // `normalized` that each id stands for; all byte pieces of a character have the range of the character.
  virtual std::vector<int32_t> encode(std::string_view normalized, std::vector<TextRange>* ranges) const = 0;
};

// Unigram and BPE models; null for what is left to the library: words, characters, and BPE with unused pieces.
std::unique_ptr<PieceModel> make_piece_model(const SentencePieceFile& file);

// A BPE model of sentencepiece: it joins any two neighbours whose joint spelling is a piece, the best score first,
// the leftmost of equals. Said in merge rules: one for every way to cut a piece in two, all of a piece with its rank.
// Symbols that the user has defined are never joined with anything.

class SentencePieceBpe final : public PieceModel {
 public:
  // The pieces need not outlive the call; none may be of type unused.
  explicit SentencePieceBpe(const SentencePieceFile& file);

  std::vector<int32_t> encode(std::string_view normalized, std::vector<TextRange>* ranges) const override;

 private:
  static BpeSpec make_rules(const SentencePieceFile& file);
  void settle_unknown(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const;

  BpeModel model_;
  ByteTrie user_defined_;
  bool has_user_defined_ = false;
  // Characters that pieces are made of but that are no piece themselves: BpeModel gives them ids from num_pieces_ on.
  int32_t num_pieces_;
  bool byte_fallback_;
  int32_t unknown_ = -1;
  mutable ScratchPool<BpeScratch> pool_;
};

// The best segmentation of a text under a unigram model: the pieces whose log probabilities sum to the most (Kudo,
// arXiv:1804.10959), the first of equals kept. Releases of the sentencepiece package differ in how they round the sum
// over a document; this follows 0.2.3: float, and set back to zero where it has passed 100,000.
//
// Rounding can only decide where two segmentations are nearly equal. A part that no piece leads out of (text_cuts.h)
// is remembered when its best segmentation is ahead of any other by more than rounding can make.

class UnigramModel final : public PieceModel {
 public:
  // The pieces need not outlive the call.
  explicit UnigramModel(const SentencePieceFile& file);

  // What no piece covers becomes byte pieces where the model has them, else one unknown id for a run.
  std::vector<int32_t> encode(std::string_view normalized, std::vector<TextRange>* ranges) const override;

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
  // Leaves the best segmentation in scratch.steps and scratch.path.
  void find_best(std::string_view part, float& score, Scratch& scratch) const;
  bool is_certain(std::string_view part, std::vector<std::pair<double, double>>& two_best) const;
  template <class Visit>
  void for_each_piece(std::string_view part, size_t begin, size_t character, Visit visit) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;
  void append_path(std::string_view part, size_t offset, const Scratch& scratch, std::vector<int32_t>& ids,
                   std::vector<TextRange>* ranges) const;

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
