// Sums and maxima, taken member by member in group order, with the same bits on every rank and in every backend.
// 16-bit floats are summed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/backends/backend.h"

namespace metroplex::comm {

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// destinations[*][span] = op over sources[*][span], for elements of `type` in host memory. A destination may alias a
// source.
void reduce_in_order(const std::vector<const void*>& sources, const std::vector<void*>& destinations,
                     ElementRange span, at::ScalarType type, ReduceOp op);

// The same for tensors of equal size on any device. Returns a new tensor.
at::Tensor reduce_tensors(const std::vector<at::Tensor>& sources, ReduceOp op);

}  // namespace metroplex::comm
