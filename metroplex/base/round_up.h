// Rounding sizes up to whole blocks, pages and tiles.
#pragma once

#include <cstdint>

namespace metroplex::base {

// The least multiple of `multiple` that is not below `value`; both are not negative.
constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace metroplex::base
