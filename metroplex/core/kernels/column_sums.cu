#include "kernels/column_sums.h"

#include "kernels/column_sums_device.h"

namespace metroplex::kernels {
namespace {

template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads, kColumnBlocks)
    column_sums_kernel(const T* x, Wide<T>* lines, ColumnSumsShape shape) {
  sum_line<count, T>(lines, shape, [&](int64_t row, int64_t column) {
    Elements<T, count> values;
    values.read(x + row * shape.stride + column);
    return values;
  });
}

constexpr unsigned kLineColumns = 8;  // per thread block: 32 bytes of floats, the smallest memory access of a GPU

// The second dimension of the grid selects the sums.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_lines_kernel(LineSumsTable<T> table) {
  const LineSums<T>& sums = table.all[blockIdx.y];
  constexpr unsigned kParts = kThreads / kLineColumns;
  __shared__ T parts[kParts][kLineColumns];
  const unsigned lane = threadIdx.x % kLineColumns, part = threadIdx.x / kLineColumns;
  const int64_t column = int64_t{blockIdx.x} * kLineColumns + lane;
  T sum = 0;
  for (int64_t line = part; column < sums.width && line < sums.count; line += kParts)
    sum += sums.lines[line * sums.stride + column];
  parts[part][lane] = sum;
  __syncthreads();
  if (part > 0 || column >= sums.width) return;
  for (unsigned p = 1; p < kParts; ++p) sum += parts[p][lane];
  sums.out[column] = sums.adds ? sums.out[column] + sum : sum;
}

}  // namespace

template <class T>
void sum_lines_cuda(const LineSumsTable<T>& table, CUstream_st* stream) {
  int64_t width = 0;
  unsigned count = 0;
  for (const LineSums<T>& sums : table.all) {
    if (sums.width == 0) break;
    width = width < sums.width ? sums.width : width;
    ++count;
  }
  if (count == 0) return;
  const dim3 blocks(static_cast<unsigned>((width + kLineColumns - 1) / kLineColumns), count);
  launch_kernel("sum_lines", sum_lines_kernel<T>, Grid{blocks, kThreads, 0, stream}, table);
}

template <class T>
void column_sums_cuda(Wide<T>* out, const T* x, Wide<T>* lines, const ColumnSumsShape& shape, CUstream_st* stream) {
  const int64_t count = column_lines<T>(shape);
  const auto start = [&]<int64_t at_once>() {
    launch_kernel("column_sums", column_sums_kernel<at_once, T>,
                  Grid{line_blocks<at_once, T>(shape), kThreads, 0, stream}, x, lines, shape);
  };
  constexpr int64_t kPack = Pack<T>::kCount;
  const bool in_packs = shape.width % kPack == 0 && shape.stride % kPack == 0 && aligned_for_packs(x);
  if (count > 0) in_packs ? start.template operator()<kPack>() : start.template operator()<1>();
  sum_lines_cuda<Wide<T>>({lines, count, shape.width, shape.width, out, shape.adds}, stream);
}

template void sum_lines_cuda<float>(const LineSumsTable<float>&, CUstream_st*);
template void sum_lines_cuda<double>(const LineSumsTable<double>&, CUstream_st*);
#define MPX_INSTANTIATE(T) \
  template void column_sums_cuda<T>(Wide<T>*, const T*, Wide<T>*, const ColumnSumsShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
