// For .cu files: the rotation of rope.h and heads.h.
#pragma once

#include "kernels/wide_access.h"

namespace metroplex::kernels {

// Rotates `count` elements `low` and their partners `high`.
template <int64_t count, class T>
__device__ void rotate_values(Elements<T, count>& low, Elements<T, count>& high, const Wide<T>* cos,
                              const Wide<T>* sin, Wide<T> sign) {
  Elements<Wide<T>, count> across, turn;
  across.read(cos);
  turn.read(sin);
  for (int64_t i = 0; i < count; ++i) {
    const Wide<T> x0 = low.values[i], x1 = high.values[i], by = sign * turn.values[i];
    low.values[i] = x0 * across.values[i] - x1 * by;
    high.values[i] = x1 * across.values[i] + x0 * by;
  }
}

// Rotates `count` adjacent elements at `from` and their partners, `apart` elements later, to `to`, which may be
// `from`.
template <int64_t count, class T>
__device__ void rotate_elements(const T* from, T* to, int64_t apart, const Wide<T>* cos, const Wide<T>* sin,
                                Wide<T> sign) {
  Elements<T, count> low, high;
  low.read(from);
  high.read(from + apart);
  rotate_values(low, high, cos, sin, sign);
  low.write(to);
  high.write(to + apart);
}

}  // namespace metroplex::kernels
