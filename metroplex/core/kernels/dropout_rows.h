// Rows of bias_dropout_add on the CPU, for kernels that process a row further while it is in the cache.
#pragma once

#include "kernels/dropout.h"
#include "kernels/dropout_block.h"
#include "kernels/vector_math.h"
#include "kernels/wide_row.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {

constexpr int64_t kPhiloxBlocks = 16;  // computed together

// bits[4 b + lane] = base::philox4x32 of blocks first .. first + kPhiloxBlocks - 1.
void philox_blocks(uint64_t key, uint64_t first, uint64_t high, uint32_t* bits);

constexpr int64_t kDrawn = 4 * kPhiloxBlocks;

// factor[i] = 0 or 1 / (1 - p) of row elements first .. first + kDrawn - 1; first + row.start must start a block.
template <class T>
MPX_INLINE void draw(const DropoutShape& shape, const DropoutRow& row, int64_t first, T* __restrict factor) {
  uint32_t bits[kDrawn];
  const auto threshold = static_cast<uint32_t>(shape.probability * 16777216.0);  // compared with the top 24 bits
  const T scale = static_cast<T>(1.0 / (1.0 - shape.probability));
  philox_blocks(shape.key, static_cast<uint64_t>((row.start + first) / 4), row.counter, bits);
  for (int64_t i = 0; i < kDrawn; ++i) factor[i] = (bits[i] >> 8) < threshold ? T(0) : scale;
}

template <class In, class Out>
DropoutOperands<In, Out, Wide<In>> widened(const DropoutOperands<In, Out>& operands, const WideRow<In>& bias) {
  return {operands.x, bias.data(), operands.residual, operands.out};
}

// Processes rows [begin, end) of bias_dropout_add.
#define MPX_ROWS(In, Out)                                                                                      \
  void drop_rows(const DropoutOperands<In, Out, Wide<In>>& operands, const DropoutShape& shape, int64_t begin, \
                 int64_t end)
MPX_FOR_ELEMENT_CASTS(MPX_ROWS);
#undef MPX_ROWS

}  // namespace metroplex::kernels

#pragma GCC pop_options
