// Storage types of arrays of numbers, and conversions of single numbers; bf16 and fp16 are stored as bits. The
// conversions have no branches, so that loops vectorize, and are constexpr, so that device code can use them. They
// use the builtin instead of std::bit_cast, which is not inlined into code under another #pragma GCC optimize.
// A GPU uses conversion instructions, which give the same bits except for NaN payloads. With the integer versions,
// kernels would no longer be memory-bound.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// Inside a constexpr function: returns the instruction's result for `from`.
#define MPX_CONVERTED(instruction, To, to, from, x)         \
  if (!std::is_constant_evaluated()) {                      \
    To result;                                              \
    asm(instruction " %0, %1;" : "=" to(result) : from(x)); \
    return result;                                          \
  }
#else
#define MPX_CONVERTED(instruction, To, to, from, x)
#endif

#include "kernels/vector_math.h"

namespace metroplex::kernels {

enum class Number { f64, f32, bf16, f16, block8 };  // block8: block8.h

template <class T>
constexpr Number kNumberOf = sizeof(T) == 8 ? Number::f64 : Number::f32;

constexpr uint32_t kFloatInfinity = 0x7F800000, kFloatSign = 0x80000000;  // bits

// Returns `yes` if a < b, else `no`, for a and b below 2^31. Compilers turn ?: and comparisons into branches, which
// prevents vectorization.
constexpr MPX_INLINE uint32_t if_less(uint32_t a, uint32_t b, uint32_t yes, uint32_t no) {
  const auto mask = static_cast<uint32_t>(static_cast<int32_t>(a - b) >> 31);
  return (yes & mask) | (no & ~mask);
}
constexpr MPX_INLINE uint32_t if_nan(uint32_t bits, uint32_t yes, uint32_t no) {
  return if_less(kFloatInfinity, bits & ~kFloatSign, yes, no);
}

constexpr MPX_INLINE float bf16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even.
constexpr MPX_INLINE uint16_t float_to_bf16(float x) {
  MPX_CONVERTED("cvt.rn.bf16.f32", uint16_t, "h", "f", x)
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(if_nan(bits, 0x7FC0, rounded));
}
// Rounds stochastically: up in magnitude with the probability of the truncated fraction. `noise`: 16 random bits. A
// bf16 value is unchanged.
constexpr MPX_INLINE uint16_t float_to_bf16(float x, uint32_t noise) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return static_cast<uint16_t>(if_nan(bits, 0x7FC0, (bits + noise) >> 16));
}

constexpr MPX_INLINE float f16_to_float(uint16_t half) {
  MPX_CONVERTED("cvt.f32.f16", float, "f", "h", half)
  constexpr uint32_t kLeastNormal = 0x0400U << 13, kLargest = 0x7BFFU << 13, kRebias = (127U - 15U) << 23;
  const uint32_t magnitude = (half & 0x7FFFU) << 13;
  const float tiny =
      __builtin_bit_cast(float, magnitude + kRebias + (1U << 23)) - __builtin_bit_cast(float, 113U << 23);
  const uint32_t large = magnitude + kRebias + if_less(kLargest, magnitude, kRebias, 0);
  const uint32_t bits = if_less(magnitude, kLeastNormal, __builtin_bit_cast(uint32_t, tiny), large);
  return __builtin_bit_cast(float, bits | (half & 0x8000U) << 16);
}

// Rounds to nearest, ties to even; infinity from 65520 on.
constexpr MPX_INLINE uint16_t float_to_f16(float x) {
  MPX_CONVERTED("cvt.rn.f16.f32", uint16_t, "h", "f", x)
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & ~kFloatSign;
  // Below 2^-14, adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
  const uint32_t tiny = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5F) - 0x3F000000U;
  const uint32_t normal = (magnitude - ((127U - 15U) << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t finite = if_less(magnitude, 113U << 23, tiny, normal);
  const uint32_t result = if_less(magnitude, 143U << 23, finite, 0x7C00);
  return static_cast<uint16_t>(if_nan(bits, 0x7E00, result) | (bits & kFloatSign) >> 16);
}

// An fp32 value as two 16-bit halves: a bf16 parameter and the low 16 bits. The parameter is rounded to nearest, ties
// away from zero. Ties to even would not be invertible: an even bf16 would represent 65537 values. The conversion is
// exact both ways; only NaNs lose their payload.
struct SplitFloat {
  uint16_t param, remainder;
};
constexpr MPX_INLINE SplitFloat split_float(float x) {
  const uint32_t raw = __builtin_bit_cast(uint32_t, x), bits = if_nan(raw, 0x7FC00000, raw);
  return {static_cast<uint16_t>((bits + 0x8000) >> 16), static_cast<uint16_t>(bits)};
}
constexpr MPX_INLINE float join_float(uint16_t param, uint16_t remainder) {
  const uint32_t low = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(remainder)));
  return __builtin_bit_cast(float, (static_cast<uint32_t>(param) << 16) + low);
}

// 32 random bits of an element as a function of its position, without a random stream. `key` is mixed_key() of the
// parameter's and the step's key. (The finalizer of C. Wellons' hash prospector, "lowbias32".)
constexpr uint32_t mixed_key(uint64_t key) {
  key += 0x9E3779B97F4A7C15;  // splitmix64
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EB;
  return static_cast<uint32_t>(key >> 32);
}
constexpr MPX_INLINE uint32_t position_noise(uint32_t key, int64_t position) {
  uint32_t x = static_cast<uint32_t>(position) ^ key;
  x = (x ^ (x >> 16)) * 0x7FEB352D;
  x = (x ^ (x >> 15)) * 0x846CA68B;
  return x ^ (x >> 16);
}

}  // namespace metroplex::kernels

#undef MPX_CONVERTED
