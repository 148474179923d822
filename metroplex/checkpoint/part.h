// Converts a caller's LocalPiece or Target, or a manifest's entry, to a Piece and checks it; and formats the name of
// a tensor for messages.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/pieces.h"
#include "files/json_text.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {

inline std::string label(const std::string& name, const std::string& kind) {
  return base::concat("tensor '", files::printable(name), "' (", files::printable(kind), ")");
}

inline std::vector<Piece> pieces_of(const files::ManifestTensor& tensor) {
  std::vector<Piece> pieces;
  for (const files::ManifestPiece& piece : tensor.pieces)
    pieces.push_back({piece.offset, piece.size, piece.begin, piece.end});
  return pieces;
}

// The elements [part.begin, part.end) of the box. A part that is not inside the tensor is a bug.
template <class Part>
Piece region_of(const Part& part) {
  const std::string what = label(part.name, part.kind);
  const size_t dims = part.global_shape.size();
  MPX_ASSERT(part.offset.size() == dims && part.size.size() == dims, what,
             ": shape, offset and size differ in length");
  Piece region = box_piece(part.offset, part.size);
  for (size_t d = 0; d < dims; ++d) {
    MPX_ASSERT(part.offset[d] >= 0 && part.size[d] >= 0 && part.offset[d] + part.size[d] <= part.global_shape[d],
               what, ": piece ", describe(region), " is not inside shape ", describe_shape(part.global_shape));
  }
  const int64_t all = region.end;
  region.begin = part.begin;
  region.end = part.end < 0 ? all : part.end;
  MPX_ASSERT(0 <= region.begin && region.begin <= region.end && region.end <= all, what, ": bad range ",
             describe(region));
  return region;
}

}  // namespace metroplex::checkpoint
