// Numbers of one floating-point type as another, on the host and without tensors: for converters of files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "files/dtype.h"

namespace metroplex::files {

// F64, F32, BF16, F16.
bool is_float(Dtype dtype);

// `count` elements, at any alignment; `in` and `out` do not overlap. Rounds to nearest, ties to even; what is too
// large becomes infinite, NaN stays NaN. Throws base::Error for types that is_float does not name, unless both are
// the same.
void convert_elements(Dtype from, const std::byte* in, Dtype to, std::byte* out, uint64_t count);

}  // namespace metroplex::files
