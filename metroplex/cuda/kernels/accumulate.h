// Half gradients added to fp32 ones without a widened copy. T is Bf16 or F16 (half.h).
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// out[i] += x[i]; or =, without reading what was there, where `adds` is false.
template <class T>
void add_elements(float* out, const T* x, int64_t n, bool adds);

// The same on a GPU, enqueued on `stream`. base::Error("cuda", ...) when nothing was launched.
template <class T>
void add_elements_cuda(float* out, const T* x, int64_t n, bool adds, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
