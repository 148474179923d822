// Parameters of which several stages or chunks hold a copy (Placement::shared; tied embeddings, say), found once at
// assembly. Their gradients are summed over all holders; the first holder in model order owns the parameter.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "nn/param.h"
#include "distributed/slice.h"

namespace metroplex::train {

struct SharedParam {
  std::string name;                 // Placement::shared
  comm::Group group;                // the stages that hold it, this one among them
  std::vector<nn::Param*> holders;  // on this rank, in the order of the model
};

// A chunk of this rank: its place among all chunks of the model, and its parameters.
struct ChunkParams {
  int64_t place = 0;
  std::vector<nn::Param*> params;
};

// What this rank shares, in an order that all ranks follow; sets Param::owner. Collective over the pipeline group.
std::vector<SharedParam> find_shared(const comm::World& world, const std::vector<ChunkParams>& chunks);

// Every holder's gradient becomes the sum over all holders, which hold the same slice of it: a shared parameter has a
// bucket of its own.
void sum_shared_gradients(const std::vector<SharedParam>& shared, const std::vector<distributed::Slice>& slices);
// Every holder takes over the values of the owner.
void share_values(const std::vector<SharedParam>& shared, const std::vector<distributed::Slice>& slices);

}  // namespace metroplex::train
