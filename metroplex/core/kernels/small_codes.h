// Codes of 8-bit and 4-bit floating point (files/small_float.h describes the formats), for values that round_small()
// has rounded (small_number.h).
#pragma once

#include <cstdint>

#include "kernels/small_number.h"

namespace metroplex::kernels {

// Bits of a code: the sign is bit `sign`, the fraction has the lowest bits.
struct CodeForm {
  SmallForm number;
  int bias, sign;
};
constexpr MPX_INLINE CodeForm e4m3_code() { return {{3, -6, 448}, 7, 7}; }
constexpr MPX_INLINE CodeForm e5m2_code() { return {{2, -14, 57344}, 15, 7}; }
constexpr MPX_INLINE CodeForm e2m1_code() { return {{1, 0, 6}, 1, 3}; }
constexpr MPX_INLINE CodeForm code_form(SmallNumber number) {
  if (number == SmallNumber::e2m1) return e2m1_code();
  return number == SmallNumber::e4m3 ? e4m3_code() : e5m2_code();
}

// `rounded` is a value of the format. NaN becomes E4M3's NaN; E2M1 has none.
constexpr MPX_INLINE uint8_t small_code(float rounded, const CodeForm& form) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, rounded), magnitude = bits & 0x7FFFFFFFU,
                 largest = (1U << form.sign) - 1, fraction = static_cast<uint32_t>(form.number.fraction),
                 least = static_cast<uint32_t>(form.number.least + 127) << 23;
  const float size = __builtin_bit_cast(float, magnitude);
  // A subnormal is a multiple of 2^(least - fraction).
  const float steps = __builtin_bit_cast(float, (127U + fraction - static_cast<uint32_t>(form.number.least)) << 23);
  uint32_t code = 0;
  if (magnitude > 0x7F800000U) code = largest;
  else if (magnitude < least) code = static_cast<uint32_t>(size * steps);
  else code = (magnitude >> (23 - fraction)) - ((127U - static_cast<uint32_t>(form.bias)) << fraction);
  return static_cast<uint8_t>((code & largest) | (bits >> 31 << form.sign));
}

constexpr MPX_INLINE float small_value(uint32_t code, const CodeForm& form) {
  const uint32_t magnitude = code & ((1U << form.sign) - 1), fraction = static_cast<uint32_t>(form.number.fraction),
                 sign = (code >> form.sign & 1U) << 31;
  uint32_t bits = 0;
  if (form.sign == e4m3_code().sign && magnitude == 0x7F) {
    bits = 0x7FC00000U;
  } else if (magnitude >> fraction == 0) {
    const uint32_t step = static_cast<uint32_t>(form.number.least + 127 - form.number.fraction) << 23;
    bits = __builtin_bit_cast(uint32_t, static_cast<float>(magnitude) * __builtin_bit_cast(float, step));
  } else {
    bits = (magnitude << (23 - fraction)) + ((127U - static_cast<uint32_t>(form.bias)) << 23);
  }
  return __builtin_bit_cast(float, bits | sign);
}

}  // namespace metroplex::kernels
