// Parameters that several stages or chunks hold (Placement::shared), for example tied embeddings. They are found once
// at assembly. Gradients are summed over all holders; the first holder in model order owns the parameter.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "nn/param.h"
#include "distributed/slice.h"

namespace metroplex::step {

struct SharedParam {
  std::string name;                 // Placement::shared
  comm::Group group;                // the stages that hold it, including this one
  std::vector<nn::Param*> holders;  // on this rank, in model order
};

// A chunk of this rank: its index among all chunks of the model, and its parameters.
struct ChunkParams {
  int64_t chunk_index = 0;
  std::vector<nn::Param*> params;
};

// Returns the shared parameters of this rank, in the same order on all ranks. Sets Param::owner. Collective over the
// pipeline group.
std::vector<SharedParam> find_shared(const comm::World& world, const std::vector<ChunkParams>& chunks);

// Replaces every holder's gradient with the sum over all holders. Holders have the same shard, because a shared
// parameter has its own bucket.
void sum_shared_gradients(const std::vector<SharedParam>& shared, const std::vector<distributed::Shard>& slices);
// Copies the owner's values to every holder.
void share_values(const std::vector<SharedParam>& shared, const std::vector<distributed::Shard>& slices);

}  // namespace metroplex::step
