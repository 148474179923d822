// Rounds operands of products to 8 bits. The values of a block share a factor, so that the block's largest
// magnitude becomes the largest value of the format. The results are the rounded values after the division by the
// factor, in float or double. Rows belong to groups, the experts of a layer: no block contains rows of two groups.
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "kernels/small_number.h"

struct CUstream_st;

namespace metroplex::kernels {

// Form of a block's factor. fp32: any number. power_of_two: the largest that does not exceed the fp32 factor (E8M0;
// TransformerEngine's MXFP8 and blockwise recipes).
enum class BlockFactor { fp32, power_of_two };

struct RoundShape {
  int64_t rows = 0, columns = 0;  // contiguous
  int64_t groups = 1;
  int64_t block_rows = 0, block_columns = 0;  // 0: all rows of the group, all columns
  SmallNumber number = SmallNumber::e4m3;
  BlockFactor factor = BlockFactor::fp32;

  constexpr int64_t column_blocks() const { return (columns + column_step() - 1) / column_step(); }
  constexpr int64_t column_step() const { return block_columns > 0 ? block_columns : columns > 0 ? columns : 1; }
  constexpr bool whole_groups() const { return block_rows == 0 && block_columns == 0; }
};

// `counts` [groups] int64 on the device: numbers of consecutive rows of each group; rows after the last group are
// neither read nor written. Null: all groups have rows / groups rows.

// magnitudes [groups]: the largest magnitude of each group, 0 without rows. NaN is ignored.
template <class T>
void largest_magnitudes(Wide<T>* magnitudes, const T* x, const int64_t* counts, const RoundShape& shape);
// out [rows, columns]. `magnitudes` [groups] are read only if blocks are whole groups.
template <class T>
void round_blocks(Wide<T>* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                  const RoundShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails. `parts`: scratch for groups * kMagnitudeParts numbers.
constexpr int64_t kMagnitudeParts = 128;
template <class T>
void largest_magnitudes_cuda(Wide<T>* magnitudes, Wide<T>* parts, const T* x, const int64_t* counts,
                             const RoundShape& shape, CUstream_st* stream);
template <class T>
void round_blocks_cuda(Wide<T>* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                       const RoundShape& shape, CUstream_st* stream);

// A value x becomes decode * round_small(encode * x).
template <class W>
struct CodeFactors {
  W encode, decode;
};

template <class W>
constexpr MPX_INLINE bool is_positive_finite(W x) {
  return x > 0 && x - x == 0;
}

// Factor that maps `magnitude` to `largest`; 1 if magnitude is 0, infinite or NaN. The result is finite.
template <class W>
constexpr MPX_INLINE W factor_to(W largest, W magnitude) {
  if (!is_positive_finite(magnitude)) return W(1);
  const W factor = largest / magnitude;
  constexpr W kHuge = std::is_same_v<W, double> ? W(0x1p1022) : W(0x1p126);
  return factor < kHuge ? factor : kHuge;
}

// `magnitude`: the largest of the block.
template <class W>
constexpr MPX_INLINE CodeFactors<W> code_factors(W magnitude, SmallNumber number, BlockFactor kind) {
  W encode = factor_to(static_cast<W>(small_form(number).largest), magnitude);
  if (kind == BlockFactor::power_of_two) encode = floor_power(encode);
  return {encode, W(1) / encode};
}

}  // namespace metroplex::kernels
