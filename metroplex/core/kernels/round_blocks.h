// Rounds operands of products to 8 or 4 bits. The values of a block share a factor, so that the block's largest
// magnitude becomes the largest value of the format. The results are the rounded values after the division by the
// factor, in float or double. Rows belong to groups, the experts of a layer: no block contains rows of two groups.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/half.h"
#include "kernels/small_number.h"

struct CUstream_st;

namespace metroplex::kernels {

// Form of a block's factor. fp32: any number. power_of_two: the largest that does not exceed the fp32 factor (E8M0;
// TransformerEngine's MXFP8 and blockwise recipes). e4m3: the inverse factor is an e4m3 number times a factor of the
// group (NVFP4, arXiv 2509.25149).
enum class BlockFactor { fp32, power_of_two, e4m3 };

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

// Random numbers of stochastic rounding, from the location of a value in the unsharded tensor.
struct RoundingNoise {
  static constexpr int kRanges = 8;
  // Columns from `local` on, up to the next range, are columns from `global` on of the unsharded tensor.
  struct Range {
    int64_t local, global;
  };
  DropoutShape positions;  // width: columns of the unsharded tensor. counters null: round to nearest
  Range ranges[kRanges] = {};
  int num_ranges = 1;

  constexpr bool active() const { return positions.rows.counters != nullptr; }
};

// `counts` [groups] int64 on the device: numbers of consecutive rows of each group; rows after the last group are
// neither read nor written. Null: all groups have rows / groups rows.

// magnitudes [groups]: the largest magnitude of each group, 0 without rows. NaN is ignored.
template <class T>
void largest_magnitudes(Wide<T>* magnitudes, const T* x, const int64_t* counts, const RoundShape& shape);
// out [rows, columns]: Wide<T>, or Bf16 for Bf16, which represents all results with BlockFactor::power_of_two.
// `magnitudes` [groups] are read if blocks are whole groups, and for BlockFactor::e4m3. With `decode` [groups], only
// if blocks are whole groups: receives the factors, also of groups without values, and `out` the rounded values
// without them, which are the numbers of codes. Bf16 represents these exactly.
template <class T, class Out>
void round_blocks(Out* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts, const RoundShape& shape,
                  const RoundingNoise& noise = {}, Wide<T>* decode = nullptr);

// The results of encode_values.
template <class W>
struct EncodedValues {
  uint8_t* codes;  // [rows, columns], or [rows, columns / 2] of E2M1: the even column in the low bits
  // [groups] if blocks are whole groups, also of groups without values; [1] with `factors`; else [row blocks, column
  // blocks]
  W* decode;
  uint8_t* factors = nullptr;  // [row blocks, column blocks] of E4M3, for BlockFactor::e4m3
};
// Codes of the values that round_blocks rounds, and their factors: a value is code * decode, or code * (factor *
// decode). Blocks that are not whole groups are blocks of one group. E2M1: blocks of 1 x 16, 16 x 1 or 16 x 16 with
// BlockFactor::e4m3, `columns` even. The factor of an E2M1 block with infinity or NaN is NaN.
template <class T>
void encode_values(const EncodedValues<Wide<T>>& out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                   const RoundShape& shape, const RoundingNoise& noise = {});

// Multiplies each 16 consecutive rows of a group by a Hadamard matrix with random signs: H diag(signs) / 4 with
// TransformerEngine's signs. It is orthogonal, so the products of two rotated matrices over their rows are unchanged.
// The last rows of a group, fewer than 16, are copied. out [rows, columns]: of x's type, as in
// TransformerEngine; the shape's blocks are not used.
constexpr int64_t kHadamardRows = 16;
template <class T>
void rotate_rows(T* out, const T* x, const int64_t* counts, const RoundShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails. `parts`: scratch for groups * kMagnitudeParts numbers.
constexpr int64_t kMagnitudeParts = 128;
template <class T>
void largest_magnitudes_cuda(Wide<T>* magnitudes, Wide<T>* parts, const T* x, const int64_t* counts,
                             const RoundShape& shape, CUstream_st* stream);
template <class T, class Out>
void round_blocks_cuda(Out* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                       const RoundShape& shape, const RoundingNoise& noise, Wide<T>* decode, CUstream_st* stream);
template <class T>
void encode_values_cuda(const EncodedValues<Wide<T>>& out, const T* x, const Wide<T>* magnitudes,
                        const int64_t* counts, const RoundShape& shape, const RoundingNoise& noise,
                        CUstream_st* stream);
template <class T>
void rotate_rows_cuda(T* out, const T* x, const int64_t* counts, const RoundShape& shape, CUstream_st* stream);

#define MPX_FOR_ROUNDINGS(MACRO) \
  MACRO(float, float);           \
  MACRO(double, double);         \
  MACRO(Bf16, float);            \
  MACRO(Bf16, Bf16);             \
  MACRO(F16, float)

// The factor of row `row` of a block before the additions of the Hadamard matrix.
constexpr MPX_INLINE float hadamard_factor(int64_t row) { return (0xD7E8 >> row & 1) != 0 ? -0.25F : 0.25F; }

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

// BlockFactor::e4m3: the factor of a group, whose inverse decodes, and a block's E4M3 number. NaN for infinity.
template <class W>
constexpr MPX_INLINE W group_factor(W of_group, SmallNumber number) {
  return factor_to(static_cast<W>(small_form(SmallNumber::e4m3).largest) * static_cast<W>(small_form(number).largest),
                   of_group);
}
template <class W>
constexpr MPX_INLINE W e4m3_factor(W magnitude, W group, SmallNumber number) {
  return round_small(magnitude / static_cast<W>(small_form(number).largest) * group, small_form(SmallNumber::e4m3));
}

// `magnitude`: the largest of the block; `of_group`: the largest of its group, for BlockFactor::e4m3.
template <class W>
constexpr MPX_INLINE CodeFactors<W> code_factors(W magnitude, W of_group, SmallNumber number, BlockFactor kind) {
  const auto largest = static_cast<W>(small_form(number).largest);
  if (kind == BlockFactor::e4m3) {
    const W group = group_factor(of_group, number);
    const W decode = e4m3_factor(magnitude, group, number) * (W(1) / group);
    return decode > 0 ? CodeFactors<W>{factor_to(W(1), decode), decode} : CodeFactors<W>{W(0), W(0)};
  }
  W encode = factor_to(largest, magnitude);
  if (kind == BlockFactor::power_of_two) encode = floor_power(encode);
  return {encode, W(1) / encode};
}

}  // namespace metroplex::kernels
