// For CPU kernels: the rotation of rope.h and heads.h.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace metroplex::kernels {

// Rotates the first 2 * half elements of a head at `from` to `to`, which may be `from`. cos, sin [half].
template <class T>
MPX_INLINE void rotate_head(const T* from, T* to, const Wide<T>* __restrict cos, const Wide<T>* __restrict sin,
                            Wide<T> sign, int64_t half, bool interleaved) {
  if (interleaved) {
#pragma GCC ivdep
    for (int64_t i = 0; i < half; ++i) {
      const Wide<T> low = load(from[2 * i]), high = load(from[2 * i + 1]), turn = sign * sin[i];
      to[2 * i] = store<T>(low * cos[i] - high * turn);
      to[2 * i + 1] = store<T>(high * cos[i] + low * turn);
    }
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const Wide<T> low = load(from[i]), high = load(from[half + i]), turn = sign * sin[i];
    to[i] = store<T>(low * cos[i] - high * turn);
    to[half + i] = store<T>(high * cos[i] + low * turn);
  }
}

}  // namespace metroplex::kernels
