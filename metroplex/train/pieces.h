// From what a rank holds of a parameter, a range of its local tensor, to boxes of the whole tensor: the language of
// checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "files/dtype.h"
#include "nn/param.h"

namespace metroplex::train {

// The elements [begin, end) of a box of the whole tensor; they start at `local` of the local tensor.
struct BoxRange {
  std::vector<int64_t> offset, size;
  int64_t begin = 0, end = 0;
  int64_t local = 0;
};

// Elements [begin, end) of the flat local tensor; padding is left out.
std::vector<BoxRange> box_ranges(const nn::Param& param, int64_t begin, int64_t end);

files::Dtype file_dtype(at::ScalarType dtype);
// Throws base::Error for a type that no parameter or optimizer state has.
at::ScalarType scalar_type_of(files::Dtype dtype);

}  // namespace metroplex::train
