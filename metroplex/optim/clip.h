// Global gradient norm and clipping over all ranks that hold different parts of the model. Sharded parameters count
// on every rank, replicated ones on the first of the ranks that hold them, shared ones at their owner.
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
  double norm = 0;            // l2 over the whole model, of the gradients as they are (not unscaled)
  int64_t num_zeros = -1;     // of real (unpadded) elements
  int64_t num_nonfinite = 0;  // Inf and NaN, of every copy of a replicated parameter
};

// The ranks over which slices differ: those of other tensor-parallel or pipeline index, and, where the state is
// sharded over data-parallel ranks, the sharding group. All of them compute on the same kind of device.
struct ModelRanks {
  topology::Coordinates at;  // of this rank
  comm::Group model_parallel, shard;
  cuda::Target target;
};

// The slices of one family of parameters; refers to a list that outlives it.
struct NormPart {
  const std::vector<Slice>& slices;
  ModelRanks ranks;
};

// [3] double where the gradients lie: the sum of their squares, the number that is not finite, and of zeros. Sums of
// every part over its ranks, added up: every rank gets the same bits. Collective over the ranks of all parts.
// Gradients must be final (reduced over dp).
at::Tensor gradient_numbers(const std::vector<NormPart>& parts);
// The same for the host, which waits.
GradientStats gradient_stats(const std::vector<NormPart>& parts);

// l2 norm of the parameters, counted the same way.
double params_norm(const std::vector<NormPart>& parts);

// The first slice with an Inf or NaN in its gradient, or null.
const Slice* first_nonfinite(const std::vector<Slice>& slices, const cuda::Target& target);

}  // namespace metroplex::optim
