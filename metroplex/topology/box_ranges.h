// Where the elements of a local tensor lie in the whole one: as runs that are contiguous in both, and as ranges of
// boxes, the language of checkpoints. Integers only: shapes, cuts and flat ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "topology/placement.h"

namespace metroplex::topology {

// The elements [begin, end) of a box of the whole tensor, in row-major order; they start at `local` of the local
// tensor.
struct BoxRange {
  std::vector<int64_t> offset, size;
  int64_t begin = 0, end = 0;
  int64_t local = 0;
};

// Elements [begin, end) of the flat local tensor, in ascending order of `local`; padding is left out. Every box is as
// large as it can be with its elements contiguous in the local tensor.
std::vector<BoxRange> box_ranges(const std::vector<int64_t>& global_shape, const Placement& placement, int64_t begin,
                                 int64_t end);

// Calls visit(local, global, count) for flat runs that are contiguous in both tensors; together they are all elements
// that are no padding, once each.
void for_each_run(const std::vector<int64_t>& global_shape, const Placement& placement,
                  const std::function<void(int64_t local, int64_t global, int64_t count)>& visit);

}  // namespace metroplex::topology
