#include "cuda/kernels/embedding.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* table, const int64_t* indices, T* out, bool add, TableShape s) {
  const int64_t items = s.count * s.width, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const int64_t index = indices[item / s.width], column = item % s.width;
    const bool here = index >= 0 && index < s.rows;
    if (add) {
      if (here) out[item] = store<T>(load(out[item]) + load(table[index * s.width + column]));
    } else {
      out[item] = here ? table[index * s.width + column] : T{};
    }
  }
}

// Blocks take runs of equal indices, threads columns: each sum is taken by one thread, in the order of the run.
template <class Table, class Dout>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(Table* table, SortedIndices sorted, const Dout* dout, TableShape s) {
  for (int64_t i = blockIdx.x; i < s.count; i += gridDim.x) {
    const int64_t index = sorted.indices[i];
    const bool starts = i == 0 || sorted.indices[i - 1] != index;
    if (!starts || index < 0 || index >= s.rows) continue;
    for (int64_t column = threadIdx.x; column < s.width; column += blockDim.x) {
      Table* const place = table + index * s.width + column;
      Table sum = *place;
      for (int64_t j = i; j < s.count && sorted.indices[j] == index; ++j)
        sum = store<Table>(load(sum) + load(dout[sorted.order[j] * s.width + column]));
      *place = sum;
    }
  }
}

}  // namespace

template <class T>
void gather_rows_cuda(const T* table, const int64_t* indices, T* out, bool add, const TableShape& shape,
                      CUstream_st* stream) {
  const int64_t items = shape.count * shape.width;
  if (items == 0) return;
  launch_kernel("gather_rows", gather_kernel<T>, Grid{blocks_for(items), kThreads, 0, stream}, table, indices, out,
                add, shape);
}

template <class Table, class Dout>
void scatter_add_rows_cuda(Table* table, const SortedIndices& sorted, const Dout* dout, const TableShape& shape,
                           CUstream_st* stream) {
  if (shape.count == 0 || shape.width == 0) return;
  launch_kernel("scatter_add_rows", scatter_kernel<Table, Dout>,
                Grid{blocks_for(shape.count * kThreads), kThreads, 0, stream}, table, sorted, dout, shape);
}

#define MPX_GATHER(T) \
  template void gather_rows_cuda<T>(const T*, const int64_t*, T*, bool, const TableShape&, CUstream_st*)
#define MPX_SCATTER(Dout, Table)                                                                                 \
  template void scatter_add_rows_cuda<Table, Dout>(Table*, const SortedIndices&, const Dout*, const TableShape&, \
                                                   CUstream_st*)
MPX_FOR_ELEMENTS(MPX_GATHER);
MPX_FOR_ELEMENT_PAIRS(MPX_SCATTER);

}  // namespace metroplex::cuda::kernels
