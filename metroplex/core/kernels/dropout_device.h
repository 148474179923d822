// For .cu files: bias_dropout_add for adjacent elements in one access.
#pragma once

#include "kernels/dropout_block.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {

// Multiplies adjacent elements of a row, from `column` on, by their dropout factors. `column` and the row's first
// element must be multiples of the smaller of `count` and a Philox block.
template <int64_t count, class T>
__device__ void drop_elements(T (&values)[count], const DropoutShape& shape, const DropoutFactor<T>& factor,
                              int64_t row, int64_t column) {
  if (!(shape.probability > 0)) return;
  const DropoutRow dropout = dropout_row(shape, row);
  constexpr int64_t kLanes = count < kPhiloxWords ? count : kPhiloxWords;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Divided block = divided(dropout.start + column + i, kPhiloxWords);
    const base::PhiloxBlock bits =
        base::philox4x32(shape.key, static_cast<uint64_t>(block.quotient), dropout.counter);
    for (int64_t lane = 0; lane < kLanes; ++lane) values[i + lane] *= factor(bits, block.remainder + lane);
  }
}

// Writes the sums of `count` adjacent elements of row `row` and returns them before they are rounded to Out.
template <int64_t count, class In, class Out>
__device__ Elements<Out, count> write_dropped_sum(const DropoutOperands<In, Out>& operands, const DropoutShape& shape,
                                                  const DropoutFactor<Wide<In>>& factor, int64_t row,
                                                  int64_t column) {
  const int64_t at = row * shape.width + column;
  Elements<In, count> x;
  x.read(operands.x + at);
  x.add(operands.bias != nullptr ? operands.bias + column : nullptr);
  drop_elements(x.values, shape, factor, row, column);
  Elements<Out, count> sum;
  for (int64_t i = 0; i < count; ++i) sum.values[i] = x.values[i];
  sum.add(operands.residual != nullptr ? operands.residual + at : nullptr);
  sum.write(operands.out + at);
  return sum;
}

}  // namespace metroplex::kernels
