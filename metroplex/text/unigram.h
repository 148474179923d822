// The best segmentation of a text under a unigram model: the pieces whose log probabilities sum to the most (Kudo,
// arXiv:1804.10959), sums in float, the first of equals kept. Releases of the sentencepiece library differ in how
// they round and so in which of two equal segmentations they choose; this follows release 0.2.3, whichever is
// installed. In documents of 100 KB and more a near-tie may still fall the other way.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace metroplex::text {

enum class PieceType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Piece {
  std::string_view text;
  float score = 0;
  PieceType type = PieceType::normal;
};

class UnigramModel {
 public:
  // By id. The texts need not outlive the call.
  explicit UnigramModel(const std::vector<Piece>& pieces);

  // Appends the ids of a text that the model's normalizer has been over. What no piece covers becomes byte pieces
  // where the model has them, else one unknown id for a run.
  void encode(std::string_view normalized, std::vector<int32_t>& ids) const;

 private:
  // A node's children lie side by side, ascending by label.
  struct Node {
    int32_t first_child = 0;
    int32_t num_children = 0;
    int32_t piece = -1;
    unsigned char label = 0;
  };
  struct Step {
    float score = 0;
    int32_t begin = -1, piece = -1;
  };
  using SortedPieces = std::vector<std::pair<std::string_view, int32_t>>;

  void build_trie(SortedPieces pieces);
  int32_t child(int32_t node, unsigned char label) const;
  float score_of(int32_t piece, size_t length) const;
  void find_best(std::string_view text, std::vector<Step>& steps) const;

  std::vector<Node> nodes_;
  std::vector<float> scores_;
  std::vector<PieceType> types_;
  std::vector<int32_t> byte_ids_;  // 256, or none
  int32_t unknown_ = 0;
  float lowest_ = 0, highest_ = 0;
};

}  // namespace metroplex::text
