// For .cu files: the size of a grid over many elements, and the check behind every launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/error.h"

namespace metroplex::cuda::kernels {

constexpr unsigned kThreads = 256;

// Blocks of kThreads for `n` work items. Kernels stride over what is left: the grid ends at what keeps a large GPU
// full (132 or 148 processors of 8 blocks), several times over.
inline unsigned blocks_for(int64_t n) {
  constexpr int64_t kMost = 8192;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

// Right behind <<<...>>>: what the launch itself found wrong. Errors inside the kernel appear at the next wait.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  MPX_CHECK(error == cudaSuccess, "cuda", "kernel ", kernel, " was not launched: ", cudaGetErrorString(error));
}

}  // namespace metroplex::cuda::kernels
