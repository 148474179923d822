// For CPU kernels: the functions that activation_math.h wants, from vector_math.h.
#pragma once

#include "cuda/kernels/activation_math.h"
#include "cuda/kernels/vector_math.h"

namespace metroplex::cuda::kernels {

struct VectorMath {
  template <class T>
  static MPX_INLINE T exp(T x) {
    return vector_exp(x);
  }
  template <class T>
  static MPX_INLINE T tanh(T x) {
    return vector_tanh(x);
  }
  template <class T>
  static MPX_INLINE T erf(T x) {
    return vector_erf(x);
  }
};

}  // namespace metroplex::cuda::kernels
