#include "text/piece_model.h"

#include <algorithm>

namespace metroplex::text {

std::unique_ptr<PieceModel> make_piece_model(const SentencePieceFile& file) {
  const bool has_unused = std::any_of(file.pieces.begin(), file.pieces.end(),
                                      [](const Piece& piece) { return piece.type == PieceType::unused; });
  if (file.model_type == SentencePieceFile::kUnigram) return std::make_unique<UnigramModel>(file);
  if (file.model_type == SentencePieceFile::kBpe && !has_unused) return std::make_unique<SentencePieceBpe>(file);
  return nullptr;
}

}  // namespace metroplex::text
