// A region of a tensor (`Piece`): the elements [begin, end), in row-major order, of a box with offset and size per
// dimension. Tensor-parallel shards are boxes; shards of an optimizer with flat buffers are ranges in a box. Any
// regions can be converted to any others by copying overlaps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {

using Dims = std::vector<int64_t>;

struct Piece {
  Dims offset, size;
  int64_t begin = 0, end = 0;  // elements; the data has end - begin of them, contiguous

  int64_t count() const { return end - begin; }
};

Piece box_piece(const Dims& offset, const Dims& size);
Piece whole_piece(const Dims& shape);

// Returns "[0:60, 0:8]", with " elements 3:10" if it is not the complete box.
std::string describe(const Piece& piece);
std::string describe_shape(const Dims& shape);

// Returns the region as disjoint complete boxes, at most 2 * dimensions - 1.
std::vector<Piece> split_into_boxes(const Piece& piece);

// True if the boxes overlap; the regions may still be disjoint.
bool boxes_meet(const Piece& a, const Piece& b);

// Copies every element in both regions from source to target and returns their number. The data must not overlap.
int64_t copy_overlap(const Piece& source, const void* source_data, const Piece& target, void* target_data,
                     int64_t element_bytes);

// Returns "" if every element of a tensor of this shape is in exactly one region. Otherwise returns the problem: two
// overlapping regions, or the number of missing elements.
std::string cover_problem(const Dims& shape, const std::vector<Piece>& pieces);

std::string label(const std::string& name, const std::string& kind);

std::vector<Piece> manifest_pieces(const files::ManifestTensor& tensor);

// Returns the elements [part.begin, part.end) of the box of a LocalPiece or Target. Asserts that they are inside the
// tensor.
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
