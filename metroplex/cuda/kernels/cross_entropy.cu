#include <limits>

#include "cuda/kernels/cross_entropy.h"
#include "cuda/kernels/reduce.h"

namespace metroplex::cuda::kernels {
namespace {

__device__ float exponential(float x) { return expf(x); }
__device__ double exponential(double x) { return exp(x); }

template <class T>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const T* logits, const int64_t* targets, RowStatistics<Wide<T>> out, LogitsShape s) {
  using A = Wide<T>;
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* x = logits + row * s.stride;
    A maximum = -std::numeric_limits<A>::infinity(), exp_sum = 0, sum = 0;
    for (int64_t i = threadIdx.x; i < s.columns; i += blockDim.x) maximum = Max()(maximum, load(x[i]));
    maximum = block_reduce(maximum, Max());
    for (int64_t i = threadIdx.x; i < s.columns; i += blockDim.x) {
      exp_sum += exponential(load(x[i]) - maximum) + A(0) * load(x[i]);
      sum += load(x[i]);
    }
    exp_sum = block_reduce(exp_sum, Add());
    sum = block_reduce(sum, Add());
    if (threadIdx.x != 0) continue;
    const int64_t target = targets[row];
    out.maximum[row] = maximum;
    out.exp_sum[row] = exp_sum;
    out.target[row] = target >= 0 && target < s.columns ? load(x[target]) : A(0);
    if (out.sum != nullptr) out.sum[row] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* logits, const int64_t* targets, CrossEntropyGradient<Wide<T>> gradient, LogitsShape s) {
  using A = Wide<T>;
  const A uniform = static_cast<A>(gradient.uniform), on_target = static_cast<A>(gradient.on_target);
  const int64_t items = s.rows * s.stride, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const int64_t row = item / s.stride, i = item % s.stride;
    const A scale = gradient.scale[row];
    A result = 0;
    if (scale != A(0) && i < s.columns) {
      result = scale * (exponential(load(logits[item]) - gradient.logsumexp[row]) - uniform);
      if (i == targets[row]) result -= scale * on_target;
    }
    logits[item] = store<T>(result);
  }
}

}  // namespace

template <class T>
void cross_entropy_statistics_cuda(const T* logits, const int64_t* targets, const RowStatistics<Wide<T>>& out,
                                   const LogitsShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  launch_kernel("cross_entropy_statistics", statistics_kernel<T>,
                Grid{blocks_for_rows(shape.rows), kThreads, 0, stream}, logits, targets, out, shape);
}

template <class T>
void cross_entropy_backward_cuda(T* logits, const int64_t* targets, const CrossEntropyGradient<Wide<T>>& gradient,
                                 const LogitsShape& shape, CUstream_st* stream) {
  if (shape.rows == 0 || shape.stride == 0) return;
  launch_kernel("cross_entropy_backward", backward_kernel<T>,
                Grid{blocks_for(shape.rows * shape.stride), kThreads, 0, stream}, logits, targets, gradient, shape);
}

#define MPX_INSTANTIATE(T)                                                                                \
  template void cross_entropy_statistics_cuda<T>(const T*, const int64_t*, const RowStatistics<Wide<T>>&, \
                                                 const LogitsShape&, CUstream_st*);                       \
  template void cross_entropy_backward_cuda<T>(T*, const int64_t*, const CrossEntropyGradient<Wide<T>>&,  \
                                               const LogitsShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
