// The elements that kernels read and write. Half types are bits in memory and float in arithmetic: load() and store()
// are the only places where the two meet, so a kernel is one template for all four types. float and double pass
// through unchanged.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/number.h"

namespace metroplex::cuda::kernels {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Bf16> || std::is_same_v<T, F16>;

// What a kernel over T computes in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr MPX_INLINE float load(float x) { return x; }
constexpr MPX_INLINE double load(double x) { return x; }
constexpr MPX_INLINE float load(Bf16 x) { return bf16_to_float(x.bits); }
constexpr MPX_INLINE float load(F16 x) { return f16_to_float(x.bits); }

// To the nearest, ties to even.
template <class T>
constexpr MPX_INLINE T store(Wide<T> x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return Bf16{float_to_bf16(x)};
  } else if constexpr (std::is_same_v<T, F16>) {
    return F16{float_to_f16(x)};
  } else {
    return x;
  }
}

// Calls MACRO(T) for every element type.
#define MPX_FOR_ELEMENTS(MACRO) \
  MACRO(float);                 \
  MACRO(double);                \
  MACRO(Bf16);                  \
  MACRO(F16)
// Calls MACRO(narrow, wide) for every pair of a tensor in the type of the parameters and one of the residual stream.
#define MPX_FOR_ELEMENT_PAIRS(MACRO) \
  MACRO(float, float);               \
  MACRO(double, double);             \
  MACRO(Bf16, Bf16);                 \
  MACRO(F16, F16);                   \
  MACRO(Bf16, float);                \
  MACRO(F16, float)
// Both ways round.
#define MPX_FOR_ELEMENT_CASTS(MACRO) \
  MPX_FOR_ELEMENT_PAIRS(MACRO);      \
  MACRO(float, Bf16);                \
  MACRO(float, F16)

}  // namespace metroplex::cuda::kernels
