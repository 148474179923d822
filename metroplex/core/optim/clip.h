// The global gradient norm over all ranks that hold different shards of the model. A sharded parameter counts on
// every rank. A replicated one counts on the first rank that holds it, a shared one on its owner.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "device/launch_point.h"
#include "distributed/slice.h"
#include "topology/rank_grid.h"

namespace metroplex::optim {

using distributed::Shard;

struct GradientStats {
  double norm = 0;            // L2 norm over the whole model, before unscaling
  int64_t num_zeros = -1;     // without padding
  int64_t num_nonfinite = 0;  // Inf and NaN, in every copy of a replicated parameter
};

// The ranks that hold different shards: the model-parallel group (tp and pp) and, with sharded state, the sharding
// group. All must compute on the same kind of device.
struct ModelRanks {
  topology::Coordinates at;  // this rank's coordinates
  comm::Group model_parallel, shard;
  device::Target target;
};

// The shards of one parameter family. `slices` must outlive it.
struct NormFamily {
  const std::vector<Shard>& slices;
  ModelRanks ranks;
  // GradBuffer::own_sums() of `slices`, or empty. Gradients with sums are not read.
  std::vector<at::Tensor> sums = {};
};

// Returns [3] double on the gradients' device: sum of squares, number of non-finite elements, number of zeros.
// Covers all ranks and families; bitwise equal on every rank. Collective over the ranks of all families. Requires
// final gradients (reduced over dp).
at::Tensor gradient_numbers(const std::vector<NormFamily>& families);
// The same on the host; waits for the device.
GradientStats gradient_stats(const std::vector<NormFamily>& families);

// L2 norm of the parameters, counted the same way.
double params_norm(const std::vector<NormFamily>& families);

// Returns the first shard with an Inf or NaN in its gradient, or null. Waits for the device.
const Shard* first_nonfinite(const std::vector<Shard>& slices, const device::Target& target);

}  // namespace metroplex::optim
