// Integer helpers of the ECHO planners, shared by the host and the lanes of a warp.
#pragma once

#include <cstdint>

namespace metroplex::plan {

constexpr int kMostEchoCaps = 32;

// Caps above the mean that the planners try, in 1/10000 of the mean.
constexpr int64_t echo_cap_bp(int index) {
  constexpr int64_t kCaps[kMostEchoCaps] = {0,    25,   50,   75,    100,   125,   150,   175,   200,   250,  315,
                                            397,  500,  630,  794,   1000,  1260,  1588,  2001,  2521,  3177, 4003,
                                            5044, 6355, 8008, 10089, 12713, 16018, 20183, 25430, 32042, 40373};
  return kCaps[index];
}

// Returns a * bp / 10000, rounded down, without overflow of the product.
constexpr int64_t echo_basis_points(int64_t a, int64_t bp) { return a / 10000 * bp + a % 10000 * bp / 10000; }

// Returns rows * part / whole, rounded down, in 128 bits if needed. The remainder is stored in `rest`.
constexpr int64_t echo_share(int64_t rows, int64_t part, int64_t whole, int64_t& rest) {
  __extension__ using Wide = unsigned __int128;
  if (((rows | part) >> 31) == 0) {
    rest = rows * part % whole;
    return rows * part / whole;
  }
  const Wide product = static_cast<Wide>(rows) * static_cast<Wide>(part);
  rest = static_cast<int64_t>(product % static_cast<Wide>(whole));
  return static_cast<int64_t>(product / static_cast<Wide>(whole));
}

}  // namespace metroplex::plan
