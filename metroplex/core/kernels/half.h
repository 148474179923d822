// Element types of kernels. Half types are stored as bits and computed in float. load() and store() are the only
// conversions, so a kernel is one template for all four types. float and double are unchanged.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/number.h"

namespace metroplex::kernels {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Bf16> || std::is_same_v<T, F16>;

// Arithmetic type of kernels over T.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr MPX_INLINE float load(float x) { return x; }
constexpr MPX_INLINE double load(double x) { return x; }
constexpr MPX_INLINE float load(Bf16 x) { return bf16_to_float(x.bits); }
constexpr MPX_INLINE float load(F16 x) { return f16_to_float(x.bits); }

// Rounds to nearest, ties to even.
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
// Calls MACRO(narrow, wide) for each pair of a parameter type and a residual stream type.
#define MPX_FOR_ELEMENT_PAIRS(MACRO) \
  MACRO(float, float);               \
  MACRO(double, double);             \
  MACRO(Bf16, Bf16);                 \
  MACRO(F16, F16);                   \
  MACRO(Bf16, float);                \
  MACRO(F16, float)
// The same pairs and their reverse.
#define MPX_FOR_ELEMENT_CASTS(MACRO) \
  MPX_FOR_ELEMENT_PAIRS(MACRO);      \
  MACRO(float, Bf16);                \
  MACRO(float, F16)

}  // namespace metroplex::kernels
