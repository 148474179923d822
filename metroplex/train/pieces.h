// From what a rank holds of a parameter, a range of its local tensor, to boxes of the whole tensor: the language of
// checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "files/dtype.h"
#include "nn/param.h"
#include "topology/box_ranges.h"

namespace metroplex::train {

// Elements [begin, end) of the flat local tensor; padding is left out.
std::vector<topology::BoxRange> box_ranges(const nn::Param& param, int64_t begin, int64_t end);

files::Dtype file_dtype(at::ScalarType dtype);
// Throws base::Error for a type that no parameter or optimizer state has.
at::ScalarType scalar_type_of(files::Dtype dtype);

}  // namespace metroplex::train
