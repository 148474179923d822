// 8-bit codes of a rank's shard of a stack of matrices, whose blocks have a factor each (round_blocks.h). Shards end
// inside blocks, so the ranks first find the largest magnitude of every block together.
#pragma once

#include <cstdint>

#include "kernels/round_blocks.h"

namespace metroplex::kernels {

struct ShardShape {
  int64_t begin = 0, size = 0;                  // elements of the flattened stack
  int64_t matrices = 1, rows = 0, columns = 0;  // rows and columns of a matrix
  int64_t block_rows = 1, block_columns = 1;
  SmallNumber number = SmallNumber::e4m3;
  BlockFactor factor = BlockFactor::power_of_two;

  constexpr int64_t row_blocks() const { return (rows + block_rows - 1) / block_rows; }
  constexpr int64_t column_blocks() const { return (columns + block_columns - 1) / block_columns; }
  constexpr int64_t blocks() const { return matrices * row_blocks() * column_blocks(); }
};

// The elements of a block that belong to the shard.
struct ShardBlock {
  int64_t first, height, width;  // index of the block's first element in the shard, which may be negative
  int64_t columns, size;

  struct Range {
    int64_t begin, end;
  };
  constexpr MPX_INLINE Range row(int64_t i) const {
    const int64_t start = first + i * columns, stop = start + width;
    return {start < 0 ? 0 : start, stop < size ? stop : size};
  }
};
constexpr MPX_INLINE ShardBlock shard_block(const ShardShape& shape, int64_t block) {
  const int64_t across = shape.column_blocks(), down = shape.row_blocks();
  const int64_t row = block / across % down * shape.block_rows, column = block % across * shape.block_columns,
                below = shape.rows - row, right = shape.columns - column;
  return {(block / (across * down) * shape.rows + row) * shape.columns + column - shape.begin,
          below < shape.block_rows ? below : shape.block_rows,
          right < shape.block_columns ? right : shape.block_columns, shape.columns, shape.size};
}

// magnitudes [matrices, row blocks, column blocks]: the largest of the block's elements in x [size], 0 without any.
// NaN is ignored.
template <class T>
void shard_magnitudes(Wide<T>* magnitudes, const T* x, const ShardShape& shape);
// codes [size], and the factors of all blocks, decode [matrices, row blocks, column blocks]. `magnitudes`: those of
// whole blocks.
template <class T>
void encode_shard(uint8_t* codes, Wide<T>* decode, const T* x, const Wide<T>* magnitudes, const ShardShape& shape);

// GPU versions, enqueued on `stream`; see round_blocks.h.
template <class T>
void shard_magnitudes_cuda(Wide<T>* magnitudes, const T* x, const ShardShape& shape, CUstream_st* stream);
template <class T>
void encode_shard_cuda(uint8_t* codes, Wide<T>* decode, const T* x, const Wide<T>* magnitudes,
                       const ShardShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels
