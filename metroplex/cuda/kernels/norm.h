// LayerNorm and RMSNorm over the last dimension of [rows, width], forward and backward, in T (float or double).
#pragma once

#include <cstdint>

namespace metroplex::cuda::kernels {

struct NormShape {
  int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
  bool rms = false;  // no mean, no bias
};

// out = (x - mean) * rstd * weight + bias; mean (unused with rms) and rstd [rows] are kept for backward.
template <class T>
void norm_forward(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, const NormShape& shape);

template <class T>
struct NormGradients {
  T* dx = nullptr;       // [rows, width]
  T* dweight = nullptr;  // [width], overwritten; sums in fixed blocks of rows: equal for any number of threads
  T* dbias = nullptr;    // [width] or null
};
template <class T>
void norm_backward(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd,
                   const NormGradients<T>& out, const NormShape& shape);

}  // namespace metroplex::cuda::kernels
