// Integers of the planners of clones that the host and the lanes of a warp share.
#pragma once

#include <cstdint>

namespace metroplex::plan {

constexpr int kMostEchoCaps = 32;

// Caps above the mean that are tried, in 1/10000 of it.
constexpr int64_t echo_cap_bp(int index) {
  constexpr int64_t kCaps[kMostEchoCaps] = {0,    25,   50,   75,    100,   125,   150,   175,   200,   250,  315,
                                            397,  500,  630,  794,   1000,  1260,  1588,  2001,  2521,  3177, 4003,
                                            5044, 6355, 8008, 10089, 12713, 16018, 20183, 25430, 32042, 40373};
  return kCaps[index];
}

// a * bp / 10000, rounded down, without the product.
constexpr int64_t echo_basis_points(int64_t a, int64_t bp) { return a / 10000 * bp + a % 10000 * bp / 10000; }

// part / whole of rows, rounded down, in 128 bits; the remainder in `rest`.
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
