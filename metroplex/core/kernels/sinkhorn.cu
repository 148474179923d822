#include "kernels/launch.h"
#include "kernels/sinkhorn.h"

namespace metroplex::kernels {
namespace {

constexpr double kTiny = 1e-8;

// Thread (group, column) sums every groups-th row; the groups of a column are added in order.
template <class T>
__device__ void scale_columns(const T* cost, const T* row, T* column, const SinkhornShape& shape) {
  __shared__ T parts[kThreads];
  const T share = T(1) / static_cast<T>(shape.columns);
  for (int64_t first = 0; first < shape.columns; first += kThreads) {
    const int64_t left = shape.columns - first, width = left < kThreads ? left : int64_t{kThreads};
    const int64_t groups = kThreads / width, group = threadIdx.x / width, c = first + threadIdx.x % width;
    T sum = 0;
    for (int64_t r = group; group < groups && r < shape.rows; r += groups)
      sum += row[r] * cost[r * shape.columns + c];
    __syncthreads();  // waits until `parts` of the previous columns have been read
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= width) continue;
    for (int64_t g = 1; g < groups; ++g) sum += parts[g * width + threadIdx.x];
    column[c] = share / (sum + static_cast<T>(kTiny));
  }
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sinkhorn_kernel(const T* logits, T* out, T* factors, SinkhornShape shape) {
  T* const row = factors;
  T *column = factors + shape.rows, *next = column + shape.columns;
  const int64_t items = shape.rows * shape.columns;
  const T share = T(1) / static_cast<T>(shape.rows);
  for (int64_t i = threadIdx.x; i < items; i += kThreads) out[i] = exp(logits[i]);
  for (int64_t c = threadIdx.x; c < shape.columns; c += kThreads) column[c] = T(1);
  __syncthreads();
  for (int64_t turn = 0; turn < kMostSinkhornTurns; ++turn) {
    for (int64_t r = threadIdx.x; r < shape.rows; r += kThreads) {
      T sum = 0;
      for (int64_t c = 0; c < shape.columns; ++c) sum += column[c] * out[r * shape.columns + c];
      row[r] = share / (sum + static_cast<T>(kTiny));
    }
    __syncthreads();
    scale_columns(out, row, next, shape);
    T change = 0;
    for (int64_t c = threadIdx.x; c < shape.columns; c += kThreads) {
      const T difference = column[c] - next[c];
      change += difference < T(0) ? -difference : difference;
    }
    change = block_reduce(change, Add());
    T* const last = column;
    column = next;
    next = last;
    if (!(change / static_cast<T>(shape.columns) > static_cast<T>(shape.tolerance))) break;
  }
  for (int64_t i = threadIdx.x; i < items; i += kThreads)
    out[i] *= column[i % shape.columns] * row[i / shape.columns];
}

}  // namespace

template <class T>
void sinkhorn_cuda(const T* logits, T* out, T* factors, const SinkhornShape& shape, CUstream_st* stream) {
  if (shape.rows == 0 || shape.columns == 0) return;
  launch_kernel("sinkhorn", sinkhorn_kernel<T>, Grid{1, kThreads, 0, stream}, logits, out, factors, shape);
}

template void sinkhorn_cuda<float>(const float*, float*, float*, const SinkhornShape&, CUstream_st*);
template void sinkhorn_cuda<double>(const double*, double*, double*, const SinkhornShape&, CUstream_st*);

}  // namespace metroplex::kernels
