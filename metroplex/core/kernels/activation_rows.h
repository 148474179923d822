// For CPU kernels: values and derivatives of activation functions over short rows, in the arithmetic type. Only
// these loops are instantiated per activation; the surrounding code is instantiated per element type.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/vector_math.h"

namespace metroplex::kernels {

constexpr int64_t kActivationChunk = 256;  // elements: three buffers fit into the L1 cache

// y[i] = f(x[i])
void activation_values(Activation kind, const float* x, int64_t n, float* y);
void activation_values(Activation kind, const double* x, int64_t n, double* y);
// Also computes slope[i] = f'(x[i]).
void activation_slopes(Activation kind, const float* x, int64_t n, float* y, float* slope);
void activation_slopes(Activation kind, const double* x, int64_t n, double* y, double* slope);

// Returns x[0, n) + bias[0, n) in the arithmetic type: x itself if no element changes, else `buffer`. bias may be
// null.
template <class T, class B>
MPX_INLINE const Wide<T>* with_bias(const T* __restrict x, const B* __restrict bias, int64_t n,
                                    Wide<T>* __restrict buffer) {
  if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) buffer[i] = load(x[i]) + load(bias[i]);
    return buffer;
  }
  if constexpr (kIsHalf<T>) {
    for (int64_t i = 0; i < n; ++i) buffer[i] = load(x[i]);
    return buffer;
  } else {
    return x;
  }
}

// Clamp the gate or the up half of gated units. Return x itself if clamping is off, else `buffer`.
template <class W>
MPX_INLINE const W* limited_gate(const UnitLimits& limits, const W* x, int64_t n, W* buffer) {
  if (!limits.any()) return x;
  for (int64_t i = 0; i < n; ++i) buffer[i] = limits.gate(x[i]);
  return buffer;
}
template <class W>
MPX_INLINE const W* limited_up(const UnitLimits& limits, const W* x, int64_t n, W* buffer) {
  if (!limits.any()) return x;
  for (int64_t i = 0; i < n; ++i) buffer[i] = limits.up(x[i]);
  return buffer;
}

// Calls body(at, n) for each chunk of a row.
template <class Body>
MPX_INLINE void for_chunks(int64_t width, const Body& body) {
  for (int64_t at = 0; at < width; at += kActivationChunk) body(at, std::min(kActivationChunk, width - at));
}

// For CPU kernels: the math functions that activation.h requires, from vector_math.h.

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
  template <class T>
  static MPX_INLINE T reciprocal(T x) {
    return T(1) / x;
  }
};

}  // namespace metroplex::kernels
