// For .cu files: the rows of a norm, each by a whole thread block of kThreads, for kernels that do more with a row
// while it is in the cache.
#pragma once

#include "cuda/kernels/norm.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/wide_access.h"

namespace metroplex::cuda::kernels {

// Elements that a thread takes at once where rows and arrays allow it: whole packs of both types.
template <class In, class Out>
constexpr int64_t kNormPack = Pack<In>::kCount < Pack<Out>::kCount ? Pack<Out>::kCount : Pack<In>::kCount;

template <class In, class Out>
bool in_packs(const NormForward<In, Out>& p, const NormShape& s) {
  return s.width % kNormPack<In, Out> == 0 && aligned_for_packs(p.x, p.weight, p.bias, p.out);
}
template <class In, class Out>
bool in_packs(const NormBackward<In, Out>& p, const Wide<In>* lines, const NormShape& s) {
  return s.width % kNormPack<In, Out> == 0 && aligned_for_packs(p.dy, p.x, p.weight, p.add, p.dx, lines);
}

// Calls each(column) for the columns at which this thread's elements begin, of all threads of the block together.
template <int64_t count, class Each>
__device__ void for_columns(const NormShape& s, const Each& each) {
  for (int64_t column = threadIdx.x * count; column < s.width; column += blockDim.x * count) each(column);
}

template <int64_t count, class In, class Out>
__device__ void norm_forward_row(const NormForward<In, Out>& p, const NormShape& s, int64_t row) {
  using T = Wide<In>;
  const In* x = p.x + row * s.width;
  Out* out = p.out + row * s.width;
  const T columns = static_cast<T>(s.width);
  const auto row_sum = [&](const auto& term) {
    T sum = 0;
    for_columns<count>(s, [&](int64_t column) {
      Elements<In, count> values;
      values.read(x + column);
      for (int64_t i = 0; i < count; ++i) sum += term(values.values[i]);
    });
    return block_reduce(sum, Add());
  };
  const T mean = s.rms ? T(0) : row_sum([](T value) { return value; }) / columns;
  const T variance = row_sum([=](T value) { return (value - mean) * (value - mean); }) / columns;
  const T rstd = T(1) / sqrt(variance + static_cast<T>(s.epsilon));
  for_columns<count>(s, [&](int64_t column) {
    Elements<In, count> values;
    Elements<T, count> weight;
    Elements<Out, count> to;
    values.read(x + column);
    weight.read(p.weight + column);
    for (int64_t i = 0; i < count; ++i) to.values[i] = (values.values[i] - mean) * rstd * weight.values[i];
    to.add(p.bias != nullptr ? p.bias + column : nullptr);
    to.write(out + column);
  });
  if (threadIdx.x == 0) {
    if (!s.rms) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

// Weight gradients of the rows of one thread block: in shared memory where they fit, else in the block's line. A
// column belongs to one thread throughout. dbias is null where nobody wants it.
template <class T>
struct NormColumns {
  T *dweight, *dbias;
};

// What backward reads of neighbouring columns of a row.
template <int64_t count, class In, class Out>
struct NormElements {
  Elements<Out, count> dy;
  Elements<In, count> normal;  // (x - mean) * rstd
  Elements<Wide<In>, count> weight;

  __device__ NormElements(const NormBackward<In, Out>& p, int64_t row_begin, int64_t column, Wide<In> mean,
                          Wide<In> rstd) {
    dy.read(p.dy + row_begin + column);
    normal.read(p.x + row_begin + column);
    weight.read(p.weight + column);
    for (Wide<In>& value : normal.values) value = (value - mean) * rstd;
  }
};

// Adds terms to neighbouring sums.
template <int64_t count, class T>
__device__ void add_to(T* sums, const T (&terms)[count]) {
  Elements<T, count> all;
  all.read(sums);
  for (int64_t i = 0; i < count; ++i) all.values[i] += terms[i];
  all.write(sums);
}

template <int64_t count, class In, class Out>
__device__ void norm_backward_row(const NormBackward<In, Out>& p, const NormShape& s, int64_t row,
                                  const NormColumns<Wide<In>>& columns) {
  using T = Wide<In>;
  const int64_t begin = row * s.width;
  const T mean = s.rms ? T(0) : p.mean[row], rstd = p.rstd[row], width = static_cast<T>(s.width);
  T sum = 0, dot = 0;
  for_columns<count>(s, [&](int64_t column) {
    const NormElements<count, In, Out> e(p, begin, column, mean, rstd);
    for (int64_t i = 0; i < count; ++i) {
      const T g = e.dy.values[i] * e.weight.values[i];
      sum += g;
      dot += g * e.normal.values[i];
    }
  });
  sum = s.rms ? T(0) : block_reduce(sum, Add()) / width;
  dot = block_reduce(dot, Add()) / width;
  for_columns<count>(s, [&](int64_t column) {
    NormElements<count, In, Out> e(p, begin, column, mean, rstd);
    Elements<In, count> dx;
    for (int64_t i = 0; i < count; ++i) {
      const T own = rstd * (e.dy.values[i] * e.weight.values[i] - sum - e.normal.values[i] * dot);
      dx.values[i] = load(store<In>(own));
      e.normal.values[i] *= e.dy.values[i];
    }
    if (p.add != nullptr) {
      Elements<In, count> past;
      past.read(p.add + begin + column);
      for (int64_t i = 0; i < count; ++i) dx.values[i] += past.values[i];
    }
    dx.write(p.dx + begin + column);
    add_to<count>(columns.dweight + column, e.normal.values);
    if (columns.dbias != nullptr) add_to<count>(columns.dbias + column, e.dy.values);
  });
}

// Where a thread block leaves its weight gradients.
template <class T>
struct NormLines {
  T* lines;
  bool shared;     // sums are made in dynamic shared memory, norm_room_bytes of it
  bool with_bias;  // dbias is wanted
};

// Calls each_row(row, columns) for the rows of this thread block, one block a line, and leaves their weight gradients
// in the line.
template <int64_t count, class T, class Row>
__device__ void norm_line(const NormLines<T>& to, const NormShape& s, const Row& each_row) {
  T* line = to.lines + int64_t{blockIdx.x} * 2 * s.width;
  T* sums = to.shared ? reinterpret_cast<T*>(dynamic_shared()) : line;
  const NormColumns<T> columns{sums, to.with_bias ? sums + s.width : nullptr};
  for_columns<count>(s, [&](int64_t column) {
    constexpr Elements<T, count> kZeros{};
    kZeros.write(columns.dweight + column);
    if (to.with_bias) kZeros.write(columns.dbias + column);
  });
  const int64_t begin = blockIdx.x * norm_rows_per_line(s), most = begin + norm_rows_per_line(s);
  const int64_t end = most < s.rows ? most : s.rows;
  for (int64_t row = begin; row < end; ++row) each_row(row, columns);
  if (!to.shared) return;
  for_columns<count>(s, [&](int64_t column) {
    Elements<T, count> of_line;
    of_line.read(columns.dweight + column);
    of_line.write(line + column);
    if (!to.with_bias) return;
    of_line.read(columns.dbias + column);
    of_line.write(line + s.width + column);
  });
}

// Bytes of shared memory for the sums: none where they do not fit into what every GPU gives without being asked.
template <class T>
unsigned norm_room_bytes(const NormShape& s, bool with_bias) {
  constexpr int64_t kMost = 40 * 1024;  // leaves some for block_reduce
  const int64_t bytes = (with_bias ? 2 : 1) * s.width * static_cast<int64_t>(sizeof(T));
  return bytes <= kMost ? static_cast<unsigned>(bytes) : 0;
}

constexpr unsigned kNormSumColumns = 8;  // 32 bytes of floats: what a GPU reads at least

// dweight and dbias out of the lines: a thread block takes kNormSumColumns columns of the lines.
template <class T>
__global__ void __launch_bounds__(kThreads) norm_sum_kernel(const T* lines, T* dweight, T* dbias, NormShape s) {
  constexpr unsigned kParts = kThreads / kNormSumColumns;
  __shared__ T parts[kParts][kNormSumColumns];
  const unsigned lane = threadIdx.x % kNormSumColumns, part = threadIdx.x / kNormSumColumns;
  const int64_t column = int64_t{blockIdx.x} * kNormSumColumns + lane, num_lines = norm_lines(s),
                columns = (dbias != nullptr ? 2 : 1) * s.width;
  T sum = 0;
  for (int64_t line = part; column < columns && line < num_lines; line += kParts)
    sum += lines[line * 2 * s.width + column];
  parts[part][lane] = sum;
  __syncthreads();
  if (part > 0 || column >= columns) return;
  for (unsigned p = 1; p < kParts; ++p) sum += parts[p][lane];
  (column < s.width ? dweight[column] : dbias[column - s.width]) = sum;
}

template <class T>
void sum_norm_lines(const T* lines, T* dweight, T* dbias, const NormShape& s, CUstream_st* stream) {
  const int64_t columns = (dbias != nullptr ? 2 : 1) * s.width;
  const int64_t blocks = (columns + kNormSumColumns - 1) / kNormSumColumns;
  launch_kernel("norm_weight_sums", norm_sum_kernel<T>, Grid{static_cast<unsigned>(blocks), kThreads, 0, stream},
                lines, dweight, dbias, s);
}

}  // namespace metroplex::cuda::kernels
