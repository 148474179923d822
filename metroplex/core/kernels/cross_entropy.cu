#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

__device__ float exponential(float x) { return expf(x); }
__device__ double exponential(double x) { return exp(x); }

// Calls each(x[i]) for the columns i of this thread; together the block's threads cover all columns.
template <int64_t count, class T, class Each>
__device__ void for_columns(const T* x, int64_t columns, const Each& each) {
  const int64_t packs = columns / count;
  for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    Elements<T, count> elements;
    elements.read(x + pack * count);
    for (int64_t i = 0; i < count; ++i) each(elements.values[i]);
  }
  for (int64_t i = packs * count + threadIdx.x; i < columns; i += blockDim.x) each(load(x[i]));
}

template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const T* logits, const int64_t* targets, RowStatistics<Wide<T>> out, LogitsShape shape) {
  using A = Wide<T>;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* x = logits + row * shape.stride;
    A maximum = -std::numeric_limits<A>::infinity(), exp_sum = 0, sum = 0;
    for_columns<count>(x, shape.columns, [&](A value) { maximum = Max()(maximum, value); });
    maximum = block_reduce(maximum, Max());
    for_columns<count>(x, shape.columns, [&](A value) {
      exp_sum += exponential(value - maximum) + A(0) * value;
      sum += value;
    });
    exp_sum = block_reduce(exp_sum, Add());
    if (out.sum != nullptr) sum = block_reduce(sum, Add());
    if (threadIdx.x != 0) continue;
    const int64_t target = targets[row];
    out.maximum[row] = maximum;
    out.exp_sum[row] = exp_sum;
    out.target[row] = target >= 0 && target < shape.columns ? load(x[target]) : A(0);
    if (out.sum != nullptr) out.sum[row] = sum;
  }
}

template <class A>
struct RowGradient {
  A scale, logsumexp, uniform, on_target;
  int64_t target, columns;

  __device__ A operator()(A x, int64_t column) const {
    if (column >= columns) return 0;
    const A gradient = scale * (exponential(x - logsumexp) - uniform);
    return column == target ? gradient - scale * on_target : gradient;
  }
};

// Adjacent packs of a row that a thread block processes at once.
constexpr int64_t kPiece = int64_t{4} * kThreads;

template <int64_t count>
__host__ __device__ int64_t pieces_of_row(const LogitsShape& shape) {
  return (shape.stride / count + kPiece - 1) / kPiece;
}

template <int64_t count, class T>
__device__ void piece_backward(T* x, const RowGradient<Wide<T>>& gradient, int64_t pack, int64_t end) {
  for (; pack < end; pack += kThreads) {
    Elements<T, count> elements{};
    if (gradient.scale != 0) {
      elements.read(x + pack * count);
      for (int64_t i = 0; i < count; ++i) elements.values[i] = gradient(elements.values[i], pack * count + i);
    }
    elements.write(x + pack * count);
  }
}

template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* logits, const int64_t* targets, CrossEntropyGradient<Wide<T>> gradient, LogitsShape shape) {
  using A = Wide<T>;
  const A uniform = static_cast<A>(gradient.uniform), on_target = static_cast<A>(gradient.on_target);
  const int64_t packs = shape.stride / count, pieces = pieces_of_row<count>(shape);
  for (int64_t item = blockIdx.x; item < shape.rows * pieces; item += gridDim.x) {
    const auto [row, piece] = divided(item, pieces);
    const int64_t begin = piece * kPiece + threadIdx.x, most = (piece + 1) * kPiece;
    if (begin >= packs) continue;
    const RowGradient<A> of_row{gradient.scale[row], gradient.logsumexp[row], uniform, on_target, targets[row],
                                shape.columns};
    piece_backward<count>(logits + row * shape.stride, of_row, begin, most < packs ? most : packs);
  }
}

template <int64_t count, class T>
void launch_statistics(const T* logits, const int64_t* targets, const RowStatistics<Wide<T>>& out,
                       const LogitsShape& shape, CUstream_st* stream) {
  launch_kernel("cross_entropy_statistics", statistics_kernel<count, T>,
                Grid{blocks_for_rows(shape.rows), kThreads, 0, stream}, logits, targets, out, shape);
}

template <int64_t count, class T>
void launch_backward(T* logits, const int64_t* targets, const CrossEntropyGradient<Wide<T>>& gradient,
                     const LogitsShape& shape, CUstream_st* stream) {
  launch_kernel("cross_entropy_backward", backward_kernel<count, T>,
                Grid{blocks_for_rows(shape.rows * pieces_of_row<count>(shape)), kThreads, 0, stream}, logits, targets,
                gradient, shape);
}

template <class T>
bool in_packs(const T* logits, const LogitsShape& shape) {
  return shape.stride % Pack<T>::kCount == 0 && aligned_for_packs(logits);
}

}  // namespace

template <class T>
void cross_entropy_statistics_cuda(const T* logits, const int64_t* targets, const RowStatistics<Wide<T>>& out,
                                   const LogitsShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  const auto launch = in_packs(logits, shape) ? launch_statistics<Pack<T>::kCount, T> : launch_statistics<1, T>;
  launch(logits, targets, out, shape, stream);
}

template <class T>
void cross_entropy_backward_cuda(T* logits, const int64_t* targets, const CrossEntropyGradient<Wide<T>>& gradient,
                                 const LogitsShape& shape, CUstream_st* stream) {
  if (shape.rows == 0 || shape.stride == 0) return;
  const auto launch = in_packs(logits, shape) ? launch_backward<Pack<T>::kCount, T> : launch_backward<1, T>;
  launch(logits, targets, gradient, shape, stream);
}

#define MPX_INSTANTIATE(T)                                                                                \
  template void cross_entropy_statistics_cuda<T>(const T*, const int64_t*, const RowStatistics<Wide<T>>&, \
                                                 const LogitsShape&, CUstream_st*);                       \
  template void cross_entropy_backward_cuda<T>(T*, const int64_t*, const CrossEntropyGradient<Wide<T>>&,  \
                                               const LogitsShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
