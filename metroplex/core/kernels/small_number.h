// Rounding to 8-bit and 4-bit floating point, with the result in float or double (OCP 8-bit Floating Point
// Specification and Microscaling Formats Specification, versions 1.0). Without branches, so that loops vectorize.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/vector_math.h"

namespace metroplex::kernels {

enum class SmallNumber { e4m3, e5m2, e2m1 };

// Sign, exponent and fraction bits. `least`: exponent of the smallest normal value; `largest`: the largest value.
struct SmallForm {
  int fraction, least;
  float largest;
};
constexpr MPX_INLINE SmallForm small_form(SmallNumber number) {
  if (number == SmallNumber::e2m1) return {1, 0, 6};
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

// The power of two that is at most the magnitude `limited`, not below the smallest normal value of the format, times
// 2^steps.
template <class W>
constexpr MPX_INLINE W scaled_power(W limited, const SmallForm& form, int steps) {
  using Bits = typename FloatBits<W>::Bits;
  const Bits least = static_cast<Bits>(form.least + FloatBits<W>::kBias) << FloatBits<W>::kFraction;
  const Bits own = __builtin_bit_cast(Bits, limited) & FloatBits<W>::kExponent;
  const auto shift = static_cast<Bits>(static_cast<Bits>(steps) << FloatBits<W>::kFraction);
  return __builtin_bit_cast(W, static_cast<Bits>((own > least ? own : least) + shift));
}

template <class W>
constexpr MPX_INLINE W limit_magnitude(W x, const SmallForm& form) {
  const W magnitude = x < 0 ? -x : x;
  const auto largest = static_cast<W>(form.largest);
  return magnitude < largest ? magnitude : largest;
}

// Returns the magnitude `rounded` with the sign of x, or NaN if x is infinite or NaN.
template <class W>
constexpr MPX_INLINE W with_sign_or_nan(W rounded, W x) {
  using Bits = typename FloatBits<W>::Bits;
  const Bits sign = __builtin_bit_cast(Bits, x) & (Bits{1} << (sizeof(Bits) * 8 - 1));
  const W nan_if_infinite = x - x;  // else 0
  return __builtin_bit_cast(W, __builtin_bit_cast(Bits, rounded + nan_if_infinite) | sign);
}

// Returns the nearest value of the format, ties to even. Magnitudes above the largest value become the largest
// value; infinity and NaN become NaN.
template <class W>
constexpr MPX_INLINE W round_small(W x, const SmallForm& form) {
  const W limited = limit_magnitude(x, form);
  // Adding a power of two rounds the sum to the distance of adjacent values of the format.
  const W power = scaled_power(limited, form, FloatBits<W>::kFraction - form.fraction);
  return with_sign_or_nan((limited + power) - power, x);
}

// Returns one of the two adjacent values of the format, the one farther from 0 with the probability that makes the
// mean exact. `uniform` in [0, 1) is its random number. Other cases as in round_small.
template <class W>
constexpr MPX_INLINE W round_small_randomly(W x, const SmallForm& form, W uniform) {
  const W limited = limit_magnitude(x, form), distance = scaled_power(limited, form, -form.fraction);
  const W steps = limited / distance;  // exact; below 2^(fraction + 1)
  const auto below = static_cast<W>(static_cast<int32_t>(steps));
  return with_sign_or_nan((below + (uniform < steps - below ? W(1) : W(0))) * distance, x);
}

// Uniform in [0, 1) from the top 24 bits of a random word.
template <class W>
constexpr MPX_INLINE W unit_interval(uint32_t bits) {
  return static_cast<W>(bits >> 8) * static_cast<W>(0x1p-24F);
}

}  // namespace metroplex::kernels
