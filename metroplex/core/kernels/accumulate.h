// Adds half-precision gradients to fp32 gradients without an fp32 copy. T is Bf16 or F16 (half.h).
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// out[i] += x[i]; if `adds` is false, out[i] = x[i] without reading out.
template <class T>
void add_elements(float* out, const T* x, int64_t n, bool adds);

// GPU version, enqueued on `stream`. Throws base::Error("cuda", ...) if the launch fails.
template <class T>
void add_elements_cuda(float* out, const T* x, int64_t n, bool adds, CUstream_st* stream);

}  // namespace metroplex::kernels
