#include "kernels/column_sums.h"

#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

// Thread blocks per SM: leaves enough registers for the compiler to issue all four loads of an unrolled loop before
// it needs the first.
constexpr unsigned kColumnBlocks = 4;

// Sums one stripe of columns over the rows of one line, with `count` adjacent columns per lane. The block's warps
// take the rows in turn.
template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads, kColumnBlocks)
    column_sums_kernel(const T* x, Wide<T>* lines, ColumnSumsShape shape) {
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
      Elements<T, count> values;
      values.read(x + row * shape.stride + first + lane);
      for (int64_t l = 0; l < count; ++l) sums.values[l] += values.values[l];
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

constexpr unsigned kLineColumns = 8;  // per thread block: 32 bytes of floats, the smallest memory access of a GPU

template <class T>
__global__ void __launch_bounds__(kThreads) sum_lines_kernel(LineSums<T> sums) {
  constexpr unsigned kParts = kThreads / kLineColumns;
  __shared__ T parts[kParts][kLineColumns];
  const unsigned lane = threadIdx.x % kLineColumns, part = threadIdx.x / kLineColumns;
  const int64_t column = int64_t{blockIdx.x} * kLineColumns + lane,
                columns = (sums.out[1] != nullptr ? 2 : 1) * sums.width;
  T sum = 0;
  for (int64_t line = part; column < columns && line < sums.count; line += kParts)
    sum += sums.lines[line * sums.stride + column];
  parts[part][lane] = sum;
  __syncthreads();
  if (part > 0 || column >= columns) return;
  for (unsigned p = 1; p < kParts; ++p) sum += parts[p][lane];
  T& to = column < sums.width ? sums.out[0][column] : sums.out[1][column - sums.width];
  to = sums.adds ? to + sum : sum;
}

}  // namespace

template <class T>
void sum_lines_cuda(const LineSums<T>& sums, CUstream_st* stream) {
  const int64_t columns = (sums.out[1] != nullptr ? 2 : 1) * sums.width;
  const int64_t blocks = (columns + kLineColumns - 1) / kLineColumns;
  launch_kernel("sum_lines", sum_lines_kernel<T>, Grid{static_cast<unsigned>(blocks), kThreads, 0, stream}, sums);
}

template <class T>
void column_sums_cuda(Wide<T>* out, const T* x, Wide<T>* lines, const ColumnSumsShape& shape, CUstream_st* stream) {
  const int64_t count = column_lines<T>(shape);
  const auto start = [&]<int64_t at_once>() {
    const int64_t stripes = (shape.width + kWarp * at_once - 1) / (kWarp * at_once);
    launch_kernel("column_sums", column_sums_kernel<at_once, T>,
                  Grid{static_cast<unsigned>(count * stripes), kThreads, 0, stream}, x, lines, shape);
  };
  constexpr int64_t kPack = Pack<T>::kCount;
  const bool in_packs = shape.width % kPack == 0 && shape.stride % kPack == 0 && aligned_for_packs(x);
  if (count > 0) in_packs ? start.template operator()<kPack>() : start.template operator()<1>();
  sum_lines_cuda<Wide<T>>({lines, count, shape.width, shape.width, {out, nullptr}, shape.adds}, stream);
}

template void sum_lines_cuda<float>(const LineSums<float>&, CUstream_st*);
template void sum_lines_cuda<double>(const LineSums<double>&, CUstream_st*);
#define MPX_INSTANTIATE(T) \
  template void column_sums_cuda<T>(Wide<T>*, const T*, Wide<T>*, const ColumnSumsShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
