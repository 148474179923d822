#include "cuda/kernels/launch.h"
#include "cuda/kernels/optimizer_step.h"

namespace metroplex::cuda::kernels {
namespace {

__device__ double loaded(const void* data, Number number, int64_t i) {
  if (number == Number::f64) return static_cast<const double*>(data)[i];
  if (number == Number::f32) return static_cast<const float*>(data)[i];
  const uint16_t half = static_cast<const uint16_t*>(data)[i];
  return number == Number::bf16 ? bf16_to_float(half) : f16_to_float(half);
}

__device__ void add(GradientSums& to, const GradientSums& from) {
  to.sum_of_squares += from.sum_of_squares;
  to.num_nonfinite += from.num_nonfinite;
  to.num_zeros += from.num_zeros;
}

// The sum over the thread block, in a fixed order; for thread 0.
__device__ GradientSums block_sum(const GradientSums& mine) {
  __shared__ double squares[kThreads];  // apart: shared memory takes no initial values
  __shared__ int64_t nonfinite[kThreads], zeros[kThreads];
  const unsigned t = threadIdx.x;
  squares[t] = mine.sum_of_squares;
  nonfinite[t] = mine.num_nonfinite;
  zeros[t] = mine.num_zeros;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) {
      squares[t] += squares[t + half];
      nonfinite[t] += nonfinite[t + half];
      zeros[t] += zeros[t + half];
    }
  }
  GradientSums total;
  if (t == 0) total = {squares[0], nonfinite[0], zeros[0]};
  __syncthreads();  // before the arrays are written again
  return total;
}

__global__ void __launch_bounds__(kThreads)
    partial_sums_kernel(const void* grad, Number number, int64_t n, GradientSums* partial) {
  const int64_t blocks = gradient_sums_blocks(n);
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    GradientSums sums;
    const int64_t end = (b + 1) * kSumsBlock < n ? (b + 1) * kSumsBlock : n;
    for (int64_t i = b * kSumsBlock + threadIdx.x; i < end; i += kThreads) {
      const double x = loaded(grad, number, i);
      add(sums, {x * x, x - x != 0, x == 0});
    }
    const GradientSums total = block_sum(sums);
    if (threadIdx.x == 0) partial[b] = total;
  }
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(const GradientSums* partial, int64_t blocks, GradientSums* out) {
  GradientSums sums;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) add(sums, partial[b]);
  const GradientSums total = block_sum(sums);
  if (threadIdx.x == 0) add(*out, total);
}

}  // namespace

void gradient_sums_cuda(const void* grad, Number number, int64_t n, const GradientSumsPlace& place,
                        CUstream_st* stream) {
  MPX_ASSERT(number != Number::block8, "gradients are not stored as block8");
  const int64_t blocks = gradient_sums_blocks(n);
  if (blocks == 0) return;
  launch_kernel("gradient_sums", partial_sums_kernel, Grid{blocks_for(blocks * kThreads), kThreads, 0, stream}, grad,
                number, n, place.workspace);
  launch_kernel("gradient_sums_total", total_kernel, Grid{1, kThreads, 0, stream}, place.workspace, blocks,
                place.sums);
}

}  // namespace metroplex::cuda::kernels
