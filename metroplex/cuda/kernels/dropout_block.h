// The arithmetic of bias_dropout_add for the elements that share one Philox block: one thread's work on a GPU. Plain
// constexpr code, so that the host can run it too (nvcc takes it with --expt-relaxed-constexpr).
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "cuda/kernels/dropout.h"

namespace metroplex::cuda::kernels {

constexpr int64_t kPhiloxWords = 4;

// What does not change from block to block.
template <class T>
struct DropoutFactor {
  uint32_t threshold = 0;  // of the top 24 bits
  T scale = 1;

  constexpr explicit DropoutFactor(double probability)
      : threshold(static_cast<uint32_t>(probability * 16777216.0)),
        scale(static_cast<T>(1.0 / (1.0 - probability))) {}
};

// Blocks that may touch a row: a row that starts in the middle of a block needs one more.
constexpr int64_t dropout_blocks_per_row(int64_t width) { return (width + 2 * (kPhiloxWords - 1)) / kPhiloxWords; }

// Work item `item` of num_rows * dropout_blocks_per_row(width).
template <class In, class Out>
constexpr void dropout_block(const DropoutOperands<In, Out>& o, const DropoutShape& shape,
                             const DropoutFactor<Wide<In>>& factor, int64_t item) {
  using T = Wide<In>;
  const int64_t blocks = dropout_blocks_per_row(shape.width), row = item / blocks, block = item % blocks;
  const bool draws = shape.probability > 0;
  const DropoutRow where = draws ? dropout_row(shape, row) : DropoutRow{};
  const int64_t first = block * kPhiloxWords - where.start % kPhiloxWords;  // element of the row, may be before it
  if (first >= shape.width) return;
  base::PhiloxBlock bits{};
  if (draws) {
    bits = base::philox4x32(shape.key, static_cast<uint64_t>((where.start + first) / kPhiloxWords), where.counter);
  }
  for (int64_t lane = 0; lane < kPhiloxWords; ++lane) {
    const int64_t e = first + lane;
    if (e < 0 || e >= shape.width) continue;
    const int64_t at = row * shape.width + e;
    T value = o.bias != nullptr ? load(o.x[at]) + o.bias[e] : load(o.x[at]);
    if (draws) value *= (bits[static_cast<size_t>(lane)] >> 8) < factor.threshold ? T(0) : factor.scale;
    o.out[at] = store<Out>(o.residual != nullptr ? value + load(o.residual[at]) : value);
  }
}

}  // namespace metroplex::cuda::kernels
