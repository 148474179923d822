// For .cu files: sums and maxima over the threads of a block of kThreads, the same on every run.
#pragma once

#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// A NaN loses, as on the CPU.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

// Every thread of the block must call it and gets the result.
template <class T, class Op>
__device__ T block_reduce(T value, const Op& op) {
  constexpr unsigned kWarp = 32;
  __shared__ T parts[kThreads / kWarp];
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  __syncthreads();  // the parts of the call before have been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  T total = parts[0];
  for (unsigned i = 1; i < kThreads / kWarp; ++i) total = op(total, parts[i]);
  return total;
}

// Blocks for `rows` rows of one block each; kernels stride over what is left.
inline unsigned blocks_for_rows(int64_t rows) { return blocks_for(rows * kThreads); }

}  // namespace metroplex::cuda::kernels
