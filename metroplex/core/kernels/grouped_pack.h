// Packs the right operand of a product into panels [k][width], the layout of the inner loops in
// grouped_product_vector.cpp and grouped_product_amx.cpp. Always inlined into functions that are compiled for the
// instruction set of `kLanes`.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/grouped_tile.h"

namespace metroplex::kernels {

template <class A, int kLanes>
struct VectorOf {
  typedef A Type __attribute__((vector_size(kLanes * sizeof(A)), aligned(sizeof(A)), may_alias));
};

template <class V, int kStep, bool kHigh, int... kLane>
MPX_INLINE void shuffled(V& out, const V& a, const V& b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  out = __builtin_shufflevector(a, b,
                                (kHigh ? ((kLane & kStep) == 0 ? kLane + kStep : kLanes + kLane)
                                       : ((kLane & kStep) == 0 ? kLane : kLanes + kLane - kStep))...);
}

template <class V, int kLanes, int kStep>
MPX_INLINE void transpose_from(V (&rows)[kLanes]) {
  if constexpr (kStep < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kStep) != 0) continue;
      const V low = rows[i], high = rows[i + kStep];
      shuffled<V, kStep, false>(rows[i], low, high, std::make_integer_sequence<int, kLanes>());
      shuffled<V, kStep, true>(rows[i + kStep], low, high, std::make_integer_sequence<int, kLanes>());
    }
    transpose_from<V, kLanes, 2 * kStep>(rows);
  }
}

// Transposes kLanes vectors of kLanes elements.
template <class V, int kLanes>
MPX_INLINE void transpose(V (&rows)[kLanes]) {
  transpose_from<V, kLanes, 1>(rows);
}

// out [k][width] = source [n][k] transposed; columns >= n are 0. width is a multiple of kLanes.
template <class A, int kLanes>
MPX_INLINE void pack_transposed(const A* source, int64_t ld, int64_t n, int64_t k, A* out, int64_t width) {
  using V = typename VectorOf<A, kLanes>::Type;
  for (int64_t column = 0; column < width; column += kLanes) {
    int64_t done = 0;
    if (column + kLanes <= n) {
      for (; done + kLanes <= k; done += kLanes) {
        V rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) rows[i] = *reinterpret_cast<const V*>(source + (column + i) * ld + done);
        transpose<V, kLanes>(rows);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) *reinterpret_cast<V*>(out + (done + i) * width + column) = rows[i];
      }
    }
    for (; done < k; ++done) {
      for (int64_t i = column; i < column + kLanes; ++i) out[done * width + i] = i < n ? source[i * ld + done] : A(0);
    }
  }
}

// Packs source [k][n] into consecutive panels of kWidth columns, [k][kWidth] each. The last panel is as wide as
// needed, rounded up to a multiple of kLanes; columns >= n are 0.
template <class A, int64_t kWidth, int64_t kLanes>
MPX_INLINE void pack_rows(const A* source, int64_t ld, int64_t n, int64_t k, A* out) {
  const int64_t whole = n / kWidth * kWidth, width = round_up(n - whole, kLanes);
  for (int64_t row = 0; row < k; ++row) {
    const A* const from = source + row * ld;
    for (int64_t column = 0; column < whole; column += kWidth) {
      A* const to = out + column * k + row * kWidth;
      for (int64_t i = 0; i < kWidth; ++i) to[i] = from[column + i];
    }
    A* const to = out + whole * k + row * width;
    for (int64_t i = 0; i < width; ++i) to[i] = whole + i < n ? from[whole + i] : A(0);
  }
}

}  // namespace metroplex::kernels
