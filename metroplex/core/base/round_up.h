// Rounding of sizes to multiples.
#pragma once

#include <cstdint>

namespace metroplex::base {

// Returns the smallest multiple of `multiple` that is >= `value`; both must be >= 0.
constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace metroplex::base
