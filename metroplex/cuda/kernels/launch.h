// For .cu files: the size of a grid over many elements, the one function by which a kernel is launched, and sums
// and maxima over the threads of a block of kThreads, the same on every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/error.h"

namespace metroplex::cuda::kernels {

constexpr unsigned kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFU;  // lanes of a warp

// Blocks of kThreads for `n` work items. Kernels stride over what is left: the grid ends at what keeps a large GPU
// full (132 or 148 processors of 8 blocks), several times over.
inline unsigned blocks_for(int64_t n) {
  constexpr int64_t kMost = 8192;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

// What Grid::dynamic_bytes made room for; multiples of 32 bytes begin there.
__device__ inline unsigned char* dynamic_shared() {
#ifdef METROPLEX_KERNELS_ON_HOST
  return kernels_on_host::dynamic_shared();
#else
  extern __shared__ __align__(32) unsigned char room[];
  return room;
#endif
}

struct Grid {
  dim3 blocks;
  unsigned threads = kThreads;    // of a block
  unsigned dynamic_bytes = 0;     // of shared memory, behind what the kernel declares
  CUstream_st* stream = nullptr;  // its launches run in their order
};

// base::Error("cuda", ...) with the kernel's name when nothing was launched. Errors inside the kernel appear at the
// next wait.
template <class... Parameters, class... Arguments>
void launch_kernel(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Arguments&... arguments) {
  cudaLaunchConfig_t how{};
  how.gridDim = grid.blocks;
  how.blockDim = dim3(grid.threads);
  how.dynamicSmemBytes = grid.dynamic_bytes;
  how.stream = grid.stream;
#ifdef METROPLEX_KERNELS_ON_HOST
  how.name = name;
#endif
  const cudaError_t error = cudaLaunchKernelEx(&how, kernel, arguments...);
  MPX_CHECK(error == cudaSuccess, "cuda", "kernel ", name, " was not launched: ", cudaGetErrorString(error));
}

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

// Every lane of the warp must call it and gets the result, of `lanes` neighbouring ones: a power of two.
template <class T, class Op>
__device__ T warp_reduce(T value, const Op& op, unsigned lanes = kWarp) {
  for (unsigned offset = lanes / 2; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}

// Every thread of the block must call it and gets the result.
template <class T, class Op>
__device__ T block_reduce(T value, const Op& op) {
  __shared__ T parts[kWarps];
  value = warp_reduce(value, op);
  __syncthreads();  // the parts of the call before have been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  T total = parts[0];
  for (unsigned i = 1; i < kWarps; ++i) total = op(total, parts[i]);
  return total;
}

// Blocks for `rows` rows of one block each; kernels stride over what is left.
inline unsigned blocks_for_rows(int64_t rows) { return blocks_for(rows * kThreads); }

}  // namespace metroplex::cuda::kernels
