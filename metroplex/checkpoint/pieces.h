// A piece of a tensor: a box of it (offset and size per dimension), and of the box's elements in row-major order
// those in [begin, end). Shards of tensor parallelism are boxes, shards of an optimizer that cuts flat buffers are
// ranges inside a box. Any pieces can be turned into any others by copying what two of them share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::checkpoint {

using Dims = std::vector<int64_t>;

struct Piece {
  Dims offset, size;
  int64_t begin = 0, end = 0;  // elements; the piece's own data holds end - begin of them, without gaps

  int64_t count() const { return end - begin; }
};

// The whole box.
Piece box_piece(const Dims& offset, const Dims& size);
Piece whole_piece(const Dims& shape);

// "[0:60, 0:8]", with " elements 3:10" behind it when it is not the whole box.
std::string describe(const Piece& piece);
std::string describe_shape(const Dims& shape);

// The piece as boxes of the tensor, whole ones and disjoint: at most 2 * dimensions - 1 of them.
std::vector<Piece> boxes_of(const Piece& piece);

// Whether their boxes meet; the pieces themselves may still share nothing.
bool boxes_meet(const Piece& a, const Piece& b);

// Copies every element that both hold from one's data to the other's; returns how many. The data do not overlap.
int64_t copy_overlap(const Piece& source, const void* source_data, const Piece& target, void* target_data,
                     int64_t element_bytes);

// "" when every element of a tensor of this shape is in exactly one piece, else what is wrong: two pieces that
// overlap, or how much is missing.
std::string cover_problem(const Dims& shape, const std::vector<Piece>& pieces);

}  // namespace metroplex::checkpoint
