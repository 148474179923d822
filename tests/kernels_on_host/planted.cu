#include "kernels_on_host/planted.h"

#include "cuda/kernels/launch.h"

namespace metroplex::kernels_on_host {
namespace {

using cuda::kernels::kThreads;

__global__ void pairs_kernel(Fault fault, const float* x, float* out, int64_t n) {
  __shared__ float mine[kThreads];
  const unsigned t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * kThreads + t;
  if (fault != Fault::extra_block && i >= n) return;
  if (fault != Fault::unwritten || t != 7) mine[t] = x[i];
  if (fault == Fault::lone_barrier && t >= kThreads / 2) return;
  if (fault != Fault::no_barrier) __syncthreads();
  const float sum = mine[t] + mine[t ^ 1];
  if (fault == Fault::between_blocks) {
    if (t == 0) out[0] += sum;
    return;
  }
  out[fault == Fault::one_too_far ? i + 1 : i] = sum;
}

__global__ void rows_kernel(Fault fault, uint16_t* x, int64_t rows, int64_t stride) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int64_t at =
      fault == Fault::narrow_stride ? static_cast<int32_t>(static_cast<uint32_t>(row * stride)) : row * stride;
  x[at] = static_cast<uint16_t>(row);
}

}  // namespace

void planted_pairs(Fault fault, const float* x, float* out, int64_t n) {
  const auto blocks = static_cast<unsigned>(n / kThreads + (fault == Fault::extra_block ? 1 : 0));
  cuda::kernels::launch_kernel("planted_pairs", pairs_kernel, cuda::kernels::Grid{blocks, kThreads, 0, nullptr},
                               fault, x, out, n);
}

void planted_rows(Fault fault, uint16_t* x, int64_t rows, int64_t stride) {
  cuda::kernels::launch_kernel("planted_rows", rows_kernel,
                               cuda::kernels::Grid{cuda::kernels::blocks_for(rows), kThreads, 0, nullptr}, fault, x,
                               rows, stride);
}

}  // namespace metroplex::kernels_on_host
