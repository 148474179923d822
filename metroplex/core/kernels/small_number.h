// Rounding to 8-bit floating point, with the result in float or double (OCP 8-bit Floating Point Specification,
// version 1.0). Without branches, so that loops vectorize.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/vector_math.h"

namespace metroplex::kernels {

enum class SmallNumber { e4m3, e5m2 };

// Sign, exponent and fraction bits. `least`: exponent of the smallest normal value; `largest`: the largest value.
struct SmallForm {
  int fraction, least;
  float largest;
};
constexpr MPX_INLINE SmallForm small_form(SmallNumber number) {
  return number == SmallNumber::e4m3 ? SmallForm{3, -6, 448} : SmallForm{2, -14, 57344};
}

template <class W>
struct FloatBits {
  using Bits = std::conditional_t<std::is_same_v<W, double>, uint64_t, uint32_t>;
  static constexpr int kFraction = std::is_same_v<W, double> ? 52 : 23,
                       kBias = std::is_same_v<W, double> ? 1023 : 127;
  static constexpr Bits kExponent = (Bits{std::is_same_v<W, double> ? 2047 : 255}) << kFraction;
};

// Returns the largest power of two that is at most x, for a normal x > 0.
template <class W>
constexpr MPX_INLINE W floor_power(W x) {
  return __builtin_bit_cast(W, __builtin_bit_cast(typename FloatBits<W>::Bits, x) & FloatBits<W>::kExponent);
}

// Returns the nearest value of the format, ties to even. Magnitudes above the largest value become the largest
// value; infinity and NaN become NaN.
template <class W>
constexpr MPX_INLINE W round_small(W x, const SmallForm& form) {
  using Bits = typename FloatBits<W>::Bits;
  const W magnitude = x < 0 ? -x : x;
  const auto largest = static_cast<W>(form.largest);
  const W limited = magnitude < largest ? magnitude : largest;
  // Adding a power of two rounds the sum to the distance of adjacent values of the format.
  const Bits least = static_cast<Bits>(form.least + FloatBits<W>::kBias) << FloatBits<W>::kFraction;
  const Bits own = __builtin_bit_cast(Bits, limited) & FloatBits<W>::kExponent;
  const Bits shift = static_cast<Bits>(FloatBits<W>::kFraction - form.fraction) << FloatBits<W>::kFraction;
  const W power = __builtin_bit_cast(W, (own > least ? own : least) + shift);
  const W rounded = (limited + power) - power;
  const Bits sign = __builtin_bit_cast(Bits, x) & (Bits{1} << (sizeof(Bits) * 8 - 1));
  const W nan_if_infinite = x - x;  // else 0
  return __builtin_bit_cast(W, __builtin_bit_cast(Bits, rounded + nan_if_infinite) | sign);
}

}  // namespace metroplex::kernels
