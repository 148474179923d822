// Converts between floating-point types on the host, without tensors; used by file converters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "files/dtype.h"

namespace metroplex::files {

// True for F64, F32, BF16 and F16.
bool is_float(Dtype dtype);

// Converts `count` elements at any alignment; `in` and `out` must not overlap. Rounds to nearest, ties to even.
// Values out of range become infinite, NaN stays NaN. Throws base::Error for types without is_float, unless both
// types are equal.
void convert_elements(Dtype from, const std::byte* in, Dtype to, std::byte* out, uint64_t count);

}  // namespace metroplex::files
