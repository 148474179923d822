// Half gradients added to fp32 ones without a widened copy. T is Bf16 or F16 (half.h).
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

namespace metroplex::cuda::kernels {

// out[i] += x[i].
template <class T>
void add_elements(float* out, const T* x, int64_t n);

}  // namespace metroplex::cuda::kernels
