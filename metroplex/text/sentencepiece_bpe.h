// A BPE model of sentencepiece: it joins any two neighbours whose joint spelling is a piece, the best score first,
// the leftmost of equals. Said in merge rules: one for every way to cut a piece in two, all of a piece with its rank.
// Symbols that the user has defined are never joined with anything.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/bpe_model.h"
#include "text/byte_trie.h"
#include "text/piece_model.h"
#include "text/scratch_pool.h"

namespace metroplex::text {

class SentencePieceBpe final : public PieceModel {
 public:
  // The pieces need not outlive the call; none may be of type unused.
  explicit SentencePieceBpe(const SentencePieceFile& file);

  std::vector<int32_t> encode(std::string_view normalized) const override;

 private:
  static BpeSpec make_rules(const SentencePieceFile& file);
  void settle_unknown(std::vector<int32_t>& ids) const;

  BpeModel model_;
  ByteTrie user_defined_;
  bool has_user_defined_ = false;
  // Characters that pieces are made of but that are no piece themselves: BpeModel gives them ids from num_pieces_ on.
  int32_t num_pieces_;
  bool byte_fallback_;
  int32_t unknown_ = -1;
  mutable ScratchPool<BpeScratch> pool_;
};

}  // namespace metroplex::text
