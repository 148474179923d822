// For .cu files: partial column sums of a matrix whose elements are computed while they are summed.
#pragma once

#include "kernels/column_sums.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {

// Thread blocks per SM: leaves enough registers for the compiler to issue all four loads of an unrolled loop before
// it needs the first.
constexpr unsigned kColumnBlocks = 4;

template <int64_t count, class T>
unsigned line_blocks(const ColumnSumsShape& shape) {
  return static_cast<unsigned>(column_lines<T>(shape) * ((shape.width + kWarp * count - 1) / (kWarp * count)));
}

// Sums one stripe of columns over the rows of one line, with `count` adjacent columns per lane. The block's warps
// take the rows in turn. values(row, column) returns Elements<T, count>. Requires line_blocks thread blocks.
template <int64_t count, class T, class Values>
__device__ void sum_line(Wide<T>* lines, const ColumnSumsShape& shape, const Values& values) {
  constexpr int64_t kColumns = kWarp * count;
  __shared__ __align__(kWideBytes) Wide<T> parts[kWarps][kColumns];
  const Divided where = divided(blockIdx.x, (shape.width + kColumns - 1) / kColumns);
  const int64_t of_line = column_rows_per_line<T>(shape), begin = where.quotient * of_line,
                end = begin + of_line < shape.rows ? begin + of_line : shape.rows, first = where.remainder * kColumns;
  const int64_t lane = threadIdx.x % kWarp * count, warp = threadIdx.x / kWarp;
  Elements<Wide<T>, count> sums{};
  if (first + lane < shape.width) {
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += kWarps) {
      const Elements<T, count> terms = values(row, first + lane);
      for (int64_t l = 0; l < count; ++l) sums.values[l] += terms.values[l];
    }
  }
  sums.write(parts[warp] + lane);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kColumns && first + i < shape.width; i += kThreads) {
    Wide<T> sum = parts[0][i];
    for (unsigned other = 1; other < kWarps; ++other) sum += parts[other][i];
    lines[where.quotient * shape.width + first + i] = sum;
  }
}

}  // namespace metroplex::kernels
