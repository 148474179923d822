// For .cu files: grid sizes, the only function that launches kernels, and deterministic sums and maxima over the
// threads of a block of kThreads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/error.h"

namespace metroplex::kernels {

constexpr unsigned kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFU;  // mask of all lanes of a warp

// Returns the number of blocks of kThreads for `n` work items. Kernels use a grid-stride loop: the grid is limited to
// several times the size that fills a large GPU (132 or 148 SMs with 8 blocks).
inline unsigned blocks_for(int64_t n) {
  constexpr int64_t kMost = 8192;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

// Returns the memory of Grid::dynamic_bytes, aligned to 32 bytes.
__device__ inline unsigned char* dynamic_shared() {
#ifdef METROPLEX_KERNELS_ON_HOST
  return kernels_on_host::dynamic_shared();
#else
  extern __shared__ __align__(32) unsigned char room[];
  return room;
#endif
}

// Bytes that a table of ranges in the arguments of a launch may have: 32,764 for all arguments, since CUDA 12.1. A
// kernel declares the table as const __grid_constant__, so no thread copies it.
constexpr size_t kTableBytes = 32000;

// Returns the range of a thread block: first[range] <= block < first[range + 1]. `first` [count + 1] ascends.
__device__ inline int find_range(const int64_t* first, int count, int64_t block) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (first[middle] <= block ? low : high) = middle;
  }
  return low;
}

struct Grid {
  dim3 blocks;
  unsigned threads = kThreads;    // per block
  unsigned dynamic_bytes = 0;     // shared memory, in addition to the static amount
  CUstream_st* stream = nullptr;  // launches of a stream run in order
};

// Throws base::Error("cuda", ...) with the kernel's name if the launch fails. Errors inside the kernel appear at the
// next synchronization.
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
// Ignores NaN, like the CPU version.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

// Reduces over `lanes` adjacent lanes, a power of two. Every lane of the warp must call it and gets the result.
template <class T, class Op>
__device__ T warp_reduce(T value, const Op& op, unsigned lanes = kWarp) {
  for (unsigned offset = lanes / 2; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}

// Returns the sum of the values of this lane and of the lanes before it. Every lane of the warp must call it.
template <class T>
__device__ T warp_scan(T value) {
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned offset = 1; offset < kWarp; offset *= 2) {
    const T before = __shfl_sync(kAll, value, (lane - offset) % kWarp);
    if (lane >= offset) value += before;
  }
  return value;
}

// Reduces over the block. Every thread of the block must call it and gets the result.
template <class T, class Op>
__device__ T block_reduce(T value, const Op& op) {
  __shared__ T parts[kWarps];
  value = warp_reduce(value, op);
  __syncthreads();  // waits until `parts` of the previous call have been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  T total = parts[0];
  for (unsigned i = 1; i < kWarps; ++i) total = op(total, parts[i]);
  return total;
}

inline unsigned blocks_for_rows(int64_t rows) { return blocks_for(rows * kThreads); }

}  // namespace metroplex::kernels
