// Splits a normalized text into the pieces of a sentencepiece model. Thread-safe.
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
  // `normalized` must be the output of the model's normalizer. `ranges`, which may be null, receives the byte range
  // of each id in `normalized`. All byte pieces of a character have the range of the character.
  virtual std::vector<int32_t> encode(std::string_view normalized, std::vector<TextRange>* ranges) const = 0;
};

// Supports unigram and BPE models. Returns null for models that are left to the sentencepiece library: word models,
// character models, and BPE models with unused pieces.
std::unique_ptr<PieceModel> make_piece_model(const SentencePieceFile& file);

// A sentencepiece BPE model. It merges adjacent pieces whose concatenation is also a piece, highest score first; ties
// go to the leftmost pair. Each way to split a piece in two is a merge rule with
// that piece's rank. User-defined symbols are never merged.
class SentencePieceBpe final : public PieceModel {
 public:
  // The pieces need not outlive the call; none may be of type unused.
  explicit SentencePieceBpe(const SentencePieceFile& file);

  std::vector<int32_t> encode(std::string_view normalized, std::vector<TextRange>* ranges) const override;

 private:
  static BpeSpec make_rules(const SentencePieceFile& file);
  void resolve_unknown(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const;

  BpeModel model_;
  ByteTrie user_defined_;
  bool has_user_defined_ = false;
  // Characters that occur in pieces but are not pieces themselves get BpeModel ids starting at num_pieces_.
  int32_t num_pieces_;
  bool byte_fallback_;
  int32_t unknown_ = -1;
  mutable ScratchPool<BpeScratch> pool_;
};

// Finds the best segmentation of a text under a unigram model: the one with the largest sum of log probabilities
// (Kudo, arXiv:1804.10959), on a tie, the first one. Releases of the sentencepiece package round the sum over a
// document differently. This class follows 0.2.3: float, reset to zero after it exceeds 100,000.
//
// Rounding only matters if two segmentations are nearly equal. A part whose boundaries no piece crosses (text_cuts.h)
// is cached if its best segmentation beats all others by more than the rounding error.
class UnigramModel final : public PieceModel {
 public:
  // The pieces need not outlive the call.
  explicit UnigramModel(const SentencePieceFile& file);

  // Text outside all pieces becomes byte pieces if the model has them, else one unknown id per run.
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

  // `score` is the document's score before the part; the call updates it.
  void encode_part(std::string_view part, Scratch& scratch, float& score, std::vector<int32_t>& ids) const;
  // Stores the best segmentation in scratch.steps and scratch.path.
  void find_best(std::string_view part, float& score, Scratch& scratch) const;
  bool is_certain(std::string_view part, std::vector<std::pair<double, double>>& two_best) const;
  template <class Visit>
  void for_each_piece(std::string_view part, size_t begin, size_t character, Visit visit) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;
  void append_path(std::string_view part, size_t offset, const Scratch& scratch, std::vector<int32_t>& ids,
                   std::vector<TextRange>* ranges) const;

  ByteTrie trie_;
  SplitPoints split_points_;
  std::vector<float> scores_;
  std::vector<int32_t> byte_ids_;     // 256, or empty
  int32_t unknown_;                   // without an unknown piece: the largest id + 1
  std::array<int32_t, 128> ascii_{};  // the piece of each ASCII character, or unknown_
  float certain_limit_ = 0;  // while the document score is below this, a cached part cannot push it to 100,000
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace metroplex::text
