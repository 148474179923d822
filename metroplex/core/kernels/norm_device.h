// For .cu files: the rows of a norm, each processed by a thread block of kThreads, for kernels that process a row
// further while it is in the cache.
#pragma once

#include "kernels/column_sums.h"
#include "kernels/launch.h"
#include "kernels/norm.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {

// Elements per thread and access if rows and arrays permit it: whole packs of both types.
template <class In, class Out>
constexpr int64_t kNormPack = Pack<In>::kCount < Pack<Out>::kCount ? Pack<Out>::kCount : Pack<In>::kCount;

// Thread blocks per SM in backward: enough loads in flight to saturate memory, with few column sums spilled from
// registers.
template <int packs, class In, class Out>
constexpr unsigned kNormBlocks = packs == 4                               ? 2
                                 : packs == 2 && sizeof(In) > sizeof(Out) ? 3
                                                                          : 4;

template <class In, class Out>
bool in_packs(const NormForward<In, Out>& forward, const NormShape& shape) {
  return shape.width % kNormPack<In, Out> == 0 &&
         aligned_for_packs(forward.x, forward.weight, forward.bias, forward.out);
}
template <class In, class Out>
bool in_packs(const NormBackward<In, Out>& backward, const Wide<In>* lines, const NormShape& shape) {
  return shape.width % kNormPack<In, Out> == 0 &&
         aligned_for_packs(backward.dy, backward.x, backward.weight, backward.add, backward.dx, lines);
}

// Reads the weights of `count` adjacent columns, plus 1 with one_plus.
template <int64_t count, class T>
__device__ Elements<T, count> norm_weight(const T* from, const NormShape& shape) {
  Elements<T, count> weight;
  weight.read(from);
  if (shape.one_plus) {
    for (Wide<T>& value : weight.values) value += 1;
  }
  return weight;
}

// Calls each(i, column) for the columns of this thread; together the block's threads cover the row. If `packs` > 0,
// at most `packs` calls suffice, and i is the index of the call. If `packs` is 0, the loop is unbounded and i is 0.
template <int64_t count, int packs, class Each>
__device__ void for_columns(const NormShape& shape, const Each& each) {
  if constexpr (packs > 0) {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const int64_t column = (i * kThreads + threadIdx.x) * count;
      if (column < shape.width) each(i, column);
    }
  } else {
    for (int64_t column = threadIdx.x * count; column < shape.width; column += blockDim.x * count) each(0, column);
  }
}

// This thread's elements of a row: loaded once in their stored type, or at each use if packs is 0.
template <class T, int64_t count, int packs>
class RowElements {
 public:
  __device__ RowElements(const T* row, const NormShape& shape) : row_(row) {
    if constexpr (packs > 0) {
      for_columns<count, packs>(shape, [&](int i, int64_t column) {
        for (int64_t part = 0; part < kParts; ++part) held_[i][part] = load_pack(row + column + part * kOfPack);
      });
    }
  }
  __device__ Elements<T, count> at(int i, int64_t column) const {
    Elements<T, count> values;
    if constexpr (packs > 0) {
      for (int64_t part = 0; part < kParts; ++part) unpack(held_[i][part], values.values + part * kOfPack);
    } else {
      values.read(row_ + column);
    }
    return values;
  }

 private:
  static constexpr int64_t kOfPack = Pack<T>::kCount, kParts = packs > 0 ? count / kOfPack : 1;

  const T* row_;
  Pack<T> held_[packs > 0 ? packs : 1][kParts];
};

// Sums over the threads of the block; all of them must call it. `turn` alternates between two buffers: a call does
// not overwrite the values of the previous call, so one barrier suffices.
template <class T, int n>
__device__ void block_sums(T (&sums)[n], unsigned& turn) {
  __shared__ T parts[2][n][kWarps];
  for (T& sum : sums) sum = warp_reduce(sum, Add());
  turn ^= 1;
  for (int i = 0; i < n && threadIdx.x % kWarp == 0; ++i) parts[turn][i][threadIdx.x / kWarp] = sums[i];
  __syncthreads();
  for (int i = 0; i < n; ++i) {
    sums[i] = parts[turn][i][0];
    for (unsigned warp = 1; warp < kWarps; ++warp) sums[i] += parts[turn][i][warp];
  }
}

template <int64_t count, int packs, class In, class Out>
__device__ void norm_forward_row(const NormForward<In, Out>& forward, const NormShape& shape, int64_t row,
                                 unsigned& turn) {
  using T = Wide<In>;
  const RowElements<In, count, packs> x(forward.x + row * shape.width, shape);
  Out* out = forward.out + row * shape.width;
  const T share = T(1) / static_cast<T>(shape.width);
  const auto row_sum = [&](const auto& term) {
    T sum[1] = {0};
    for_columns<count, packs>(shape, [&](int i, int64_t column) {
      const Elements<In, count> values = x.at(i, column);
      for (int64_t l = 0; l < count; ++l) sum[0] += term(values.values[l]);
    });
    block_sums(sum, turn);
    return sum[0];
  };
  const T mean = shape.rms ? T(0) : row_sum([](T value) { return value; }) * share;
  const T variance = row_sum([=](T value) { return (value - mean) * (value - mean); }) * share;
  const T rstd = T(1) / sqrt(variance + static_cast<T>(shape.epsilon));
  for_columns<count, packs>(shape, [&](int i, int64_t column) {
    const Elements<In, count> values = x.at(i, column);
    const Elements<Out, count> weight = norm_weight<count>(forward.weight + column, shape);
    Elements<Out, count> to;
    for (int64_t l = 0; l < count; ++l) to.values[l] = (values.values[l] - mean) * rstd * weight.values[l];
    to.add(forward.bias != nullptr ? forward.bias + column : nullptr);
    to.write(out + column);
  });
  if (threadIdx.x == 0) {
    if (!shape.rms) forward.mean[row] = mean;
    forward.rstd[row] = rstd;
  }
}

// Weight gradients of the rows of one thread block. Each column belongs to one thread. Its sums are in registers; if
// packs is 0, they are in shared memory if they fit, otherwise in the block's line. dbias is null if not required.
template <class T, int64_t count, int packs>
struct NormColumns {
  Elements<T, count> dweight[packs], dbias[packs];

  __device__ void add(int i, int64_t /*column*/, const T (&to_dweight)[count], const T (&to_dbias)[count]) {
    for (int64_t l = 0; l < count; ++l) dweight[i].values[l] += to_dweight[l];
    for (int64_t l = 0; l < count; ++l) dbias[i].values[l] += to_dbias[l];
  }
};
template <class T, int64_t count>
struct NormColumns<T, count, 0> {
  T *dweight, *dbias;

  __device__ void add(int /*i*/, int64_t column, const T (&to_dweight)[count], const T (&to_dbias)[count]) {
    add_to(dweight + column, to_dweight);
    if (dbias != nullptr) add_to(dbias + column, to_dbias);
  }
  static __device__ void add_to(T* sums, const T (&terms)[count]) {
    Elements<T, count> all;
    all.read(sums);
    for (int64_t l = 0; l < count; ++l) all.values[l] += terms[l];
    all.write(sums);
  }
};

template <int64_t count, int packs, class In, class Out>
__device__ void norm_backward_row(const NormBackward<In, Out>& backward, const NormShape& shape, int64_t row,
                                  NormColumns<Wide<In>, count, packs>& columns, unsigned& turn) {
  using T = Wide<In>;
  const int64_t begin = row * shape.width;
  const RowElements<In, count, packs> x(backward.x + begin, shape);
  const RowElements<Out, count, packs> gradients(backward.dy + begin, shape);
  const T mean = shape.rms ? T(0) : backward.mean[row], rstd = backward.rstd[row],
          share = T(1) / static_cast<T>(shape.width);
  // each(i, column, dy, x - mean, weight)
  const auto for_elements = [&](const auto& each) {
    for_columns<count, packs>(shape, [&](int i, int64_t column) {
      Elements<In, count> centred = x.at(i, column);
      const Elements<Out, count> weight = norm_weight<count>(backward.weight + column, shape);
      for (T& value : centred.values) value -= mean;
      each(i, column, gradients.at(i, column).values, centred.values, weight.values);
    });
  };
  T sums[2] = {0, 0};  // sums of dy * weight and of dy * weight * (x - mean) * rstd
  for_elements([&](int i, int64_t column, const T(&dy)[count], const T(&centred)[count], const T(&weight)[count]) {
    T to_dweight[count];
    for (int64_t l = 0; l < count; ++l) {
      const T g = dy[l] * weight[l], normal = centred[l] * rstd;
      sums[0] += g;
      sums[1] += g * normal;
      to_dweight[l] = dy[l] * normal;
    }
    columns.add(i, column, to_dweight, dy);
  });
  block_sums(sums, turn);
  const T sum = shape.rms ? T(0) : sums[0] * share, dot = sums[1] * share * rstd;
  for_elements(
      [&](int /*i*/, int64_t column, const T(&dy)[count], const T(&centred)[count], const T(&weight)[count]) {
        Elements<In, count> dx;
        for (int64_t l = 0; l < count; ++l) dx.values[l] = rstd * (dy[l] * weight[l] - sum - centred[l] * dot);
        if (backward.add != nullptr) {
          Elements<In, count> past;
          past.read(backward.add + begin + column);
          for (int64_t l = 0; l < count; ++l) dx.values[l] = load(store<In>(dx.values[l])) + past.values[l];
        }
        dx.write(backward.dx + begin + column);
      });
}

template <class T>
struct NormLines {
  T* lines;
  bool shared;     // sums are in dynamic shared memory of norm_room_bytes
  bool with_bias;  // dbias is required
};

// Calls each_row(row, columns) for the rows of this thread block (one block per line), and writes their weight
// gradients to the line.
template <int64_t count, int packs, class T, class Row>
__device__ void norm_line(const NormLines<T>& to, const NormShape& shape, const Row& each_row) {
  T *line = to.lines + int64_t{blockIdx.x} * 2 * shape.width, *sums = line;
  NormColumns<T, count, packs> columns{};
  if constexpr (packs == 0) {
    if (to.shared) sums = reinterpret_cast<T*>(dynamic_shared());
    columns = {sums, to.with_bias ? sums + shape.width : nullptr};
    for_columns<count, 0>(shape, [&](int, int64_t column) {
      constexpr Elements<T, count> kZeros{};
      kZeros.write(columns.dweight + column);
      if (to.with_bias) kZeros.write(columns.dbias + column);
    });
  }
  const int64_t begin = blockIdx.x * norm_rows_per_line(shape), most = begin + norm_rows_per_line(shape);
  const int64_t end = most < shape.rows ? most : shape.rows;
  for (int64_t row = begin; row < end; ++row) each_row(row, columns);
  if (packs == 0 && !to.shared) return;
  for_columns<count, packs>(shape, [&](int i, int64_t column) {
    Elements<T, count> dweight, dbias{};
    if constexpr (packs > 0) {
      dweight = columns.dweight[i], dbias = columns.dbias[i];
    } else {
      dweight.read(columns.dweight + column);
      if (to.with_bias) dbias.read(columns.dbias + column);
    }
    dweight.write(line + column);
    if (to.with_bias) dbias.write(line + shape.width + column);
  });
}

// Calls call.template operator()<count, packs>() for rows of whole packs or of single elements.
template <class In, class Out, class Call>
void with_norm_packs(bool in_packs, const NormShape& shape, const Call& call) {
  constexpr int64_t kPack = kNormPack<In, Out>, kOfBlock = kPack * kThreads;
  if (!in_packs) return call.template operator()<1, 0>();
  if (shape.width <= kOfBlock) return call.template operator()<kPack, 1>();
  if (shape.width <= 2 * kOfBlock) return call.template operator()<kPack, 2>();
  if (shape.width <= 4 * kOfBlock) return call.template operator()<kPack, 4>();
  call.template operator()<kPack, 0>();
}

// Bytes of shared memory for the sums: 0 if they exceed the default limit of every GPU, or if registers hold them.
template <class T>
unsigned norm_room_bytes(const NormShape& shape, bool with_bias, int packs) {
  constexpr int64_t kMost = 40 * 1024;  // leaves space for block_reduce
  const int64_t bytes = (with_bias ? 2 : 1) * shape.width * static_cast<int64_t>(sizeof(T));
  return packs == 0 && bytes <= kMost ? static_cast<unsigned>(bytes) : 0;
}

// Sums the lines into dweight and dbias; dbias may be null.
template <class T>
void sum_norm_lines(const T* lines, T* dweight, T* dbias, const NormShape& shape, CUstream_st* stream) {
  sum_lines_cuda<T>({lines, norm_lines(shape), 2 * shape.width, shape.width, {dweight, dbias}}, stream);
}

}  // namespace metroplex::kernels
