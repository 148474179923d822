// Splits a flat index into row and column.
#pragma once

#include <cstdint>

namespace metroplex::kernels {

// a / b and its remainder, for a >= 0 and b > 0. Uses 32-bit division if both fit, which is several times faster
// on a GPU.
struct Divided {
  int64_t quotient, remainder;
};
constexpr Divided divided(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) {
    const auto small_a = static_cast<uint32_t>(a), small_b = static_cast<uint32_t>(b);
    const uint32_t quotient = small_a / small_b;
    return {quotient, small_a - quotient * small_b};
  }
  return {a / b, a % b};
}

}  // namespace metroplex::kernels
