// For .cu files: the rows of a norm, each by a whole thread block of kThreads, for kernels that do more with a row
// while it is in the cache.
#pragma once

#include "cuda/kernels/norm.h"
#include "cuda/kernels/reduce.h"

namespace metroplex::cuda::kernels {

template <class In, class Out>
__device__ void norm_forward_row(const NormForward<In, Out>& p, const NormShape& s, int64_t row) {
  using T = Wide<In>;
  const In* x = p.x + row * s.width;
  Out* out = p.out + row * s.width;
  const T count = static_cast<T>(s.width);
  const auto row_sum = [&](const auto& term) {
    T sum = 0;
    for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) sum += term(load(x[i]));
    return block_reduce(sum, Add());
  };
  const T mean = s.rms ? T(0) : row_sum([](T value) { return value; }) / count;
  const T variance = row_sum([=](T value) { return (value - mean) * (value - mean); }) / count;
  const T rstd = T(1) / sqrt(variance + static_cast<T>(s.epsilon));
  for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
    const T scaled = (load(x[i]) - mean) * rstd * p.weight[i];
    out[i] = store<Out>(p.bias != nullptr ? scaled + p.bias[i] : scaled);
  }
  if (threadIdx.x == 0) {
    if (!s.rms) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

// Weight gradients of the rows of one thread block: in shared memory where they fit, else in the block's line. A
// column belongs to one thread throughout.
template <class T>
struct NormColumns {
  T *dweight, *dbias;
};

template <class In, class Out>
__device__ void norm_backward_row(const NormBackward<In, Out>& p, const NormShape& s, int64_t row,
                                  const NormColumns<Wide<In>>& columns) {
  using T = Wide<In>;
  const Out* dy = p.dy + row * s.width;
  const In* x = p.x + row * s.width;
  const In* add = p.add == nullptr ? nullptr : p.add + row * s.width;
  const T mean = s.rms ? T(0) : p.mean[row], rstd = p.rstd[row], count = static_cast<T>(s.width);
  T sum = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
    const T g = load(dy[i]) * p.weight[i];
    sum += g;
    dot += g * ((load(x[i]) - mean) * rstd);
  }
  sum = s.rms ? T(0) : block_reduce(sum, Add()) / count;
  dot = block_reduce(dot, Add()) / count;
  for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
    const T g = load(dy[i]), normal = (load(x[i]) - mean) * rstd;
    const In own = store<In>(rstd * (g * p.weight[i] - sum - normal * dot));
    p.dx[row * s.width + i] = add == nullptr ? own : store<In>(load(own) + load(add[i]));
    columns.dweight[i] += g * normal;
    if (p.dbias != nullptr) columns.dbias[i] += g;
  }
}

// Calls each_row(row, columns) for the rows of this thread block, one block a line, and leaves their weight gradients
// in the line. `room`: shared memory for 2 * width numbers, or null.
template <class T, class Row>
__device__ void norm_line(T* lines, T* room, const NormShape& s, const Row& each_row) {
  T* line = lines + int64_t{blockIdx.x} * 2 * s.width;
  T* sums = room != nullptr ? room : line;
  const NormColumns<T> columns{sums, sums + s.width};
  for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) columns.dweight[i] = columns.dbias[i] = T(0);
  const int64_t begin = blockIdx.x * norm_rows_per_line(s), most = begin + norm_rows_per_line(s);
  const int64_t end = most < s.rows ? most : s.rows;
  for (int64_t row = begin; row < end; ++row) each_row(row, columns);
  if (room == nullptr) return;
  for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
    line[i] = columns.dweight[i];
    line[s.width + i] = columns.dbias[i];
  }
}

// Bytes of `room`: none where the columns do not fit into what every GPU gives without being asked.
template <class T>
unsigned norm_room_bytes(const NormShape& s) {
  constexpr int64_t kMost = 40 * 1024;  // leaves some for block_reduce
  const int64_t bytes = 2 * s.width * static_cast<int64_t>(sizeof(T));
  return bytes <= kMost ? static_cast<unsigned>(bytes) : 0;
}
template <class T>
__device__ T* norm_room(bool shared) {
  return shared ? reinterpret_cast<T*>(dynamic_shared()) : nullptr;
}

constexpr unsigned kNormSumColumns = 32;

// dweight and dbias out of the lines: a thread block takes kNormSumColumns columns.
template <class T>
__global__ void __launch_bounds__(kThreads) norm_sum_kernel(const T* lines, T* dweight, T* dbias, NormShape s) {
  constexpr unsigned kParts = kThreads / kNormSumColumns;
  __shared__ T parts[2][kParts][kNormSumColumns];
  const unsigned lane = threadIdx.x % kNormSumColumns, part = threadIdx.x / kNormSumColumns;
  const int64_t i = int64_t{blockIdx.x} * kNormSumColumns + lane;
  T weight = 0, bias = 0;
  for (int64_t line = part; i < s.width && line < norm_lines(s); line += kParts) {
    weight += lines[line * 2 * s.width + i];
    bias += lines[(line * 2 + 1) * s.width + i];
  }
  parts[0][part][lane] = weight;
  parts[1][part][lane] = bias;
  __syncthreads();
  if (part > 0 || i >= s.width) return;
  for (unsigned p = 1; p < kParts; ++p) {
    weight += parts[0][p][lane];
    bias += parts[1][p][lane];
  }
  dweight[i] = weight;
  if (dbias != nullptr) dbias[i] = bias;
}

template <class T>
void sum_norm_lines(const T* lines, T* dweight, T* dbias, const NormShape& s, CUstream_st* stream) {
  const int64_t blocks = (s.width + kNormSumColumns - 1) / kNormSumColumns;
  launch_kernel("norm_weight_sums", norm_sum_kernel<T>, Grid{static_cast<unsigned>(blocks), kThreads, 0, stream},
                lines, dweight, dbias, s);
}

}  // namespace metroplex::cuda::kernels
