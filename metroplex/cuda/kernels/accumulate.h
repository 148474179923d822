// Half gradients added to fp32 ones without a widened copy. T is Bf16 or F16 (half.h).
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

namespace metroplex::cuda::kernels {

// out[i] += x[i].
template <class T>
void add_elements(float* out, const T* x, int64_t n);
// out[c] += the sum of column c of x [rows, width], in the order of the rows.
template <class T>
void add_column_sums(float* out, const T* x, int64_t rows, int64_t width);

}  // namespace metroplex::cuda::kernels
