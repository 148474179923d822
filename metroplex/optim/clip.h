// The global gradient norm over all ranks that hold different parts of the model. Sharded parameters are counted on
// every rank, replicated ones on the first of the ranks that hold them, shared ones at their owner.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "cuda/launch_point.h"
#include "distributed/slice.h"
#include "topology/rank_grid.h"

namespace metroplex::optim {

using distributed::Slice;

struct GradientStats {
  double norm = 0;            // l2 over the whole model, of the gradients before unscaling
  int64_t num_zeros = -1;     // of real (unpadded) elements
  int64_t num_nonfinite = 0;  // Inf and NaN, in every copy of a replicated parameter
};

// The ranks that hold different slices: the model-parallel group (tp and pp) and, where state is sharded over
// data-parallel ranks, the sharding group. All of them compute on the same kind of device.
struct ModelRanks {
  topology::Coordinates at;  // of this rank
  comm::Group model_parallel, shard;
  cuda::Target target;
};

// The slices of one parameter family; refers to a list that outlives it.
struct NormPart {
  const std::vector<Slice>& slices;
  ModelRanks ranks;
};

// [3] double on the gradients' device: sum of squares, number of non-finite elements, number of zeros; over all ranks
// and parts, with the same bits on every rank. Collective over the ranks of all parts. Requires final gradients
// (reduced over dp).
at::Tensor gradient_numbers(const std::vector<NormPart>& parts);
// The same on the host, which waits for the device.
GradientStats gradient_stats(const std::vector<NormPart>& parts);

// l2 norm of the parameters, counted the same way.
double params_norm(const std::vector<NormPart>& parts);

// The first slice with an Inf or NaN in its gradient, or null.
const Slice* first_nonfinite(const std::vector<Slice>& slices, const cuda::Target& target);

}  // namespace metroplex::optim
