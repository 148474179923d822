// Activation recompute. Full: saves only the inputs of each chunk of layers, whole or sharded over the
// tensor-parallel ranks (ZeRO-R); backward runs the forward again. By module: the output of a layer is dropped
// after use, and the backward of the next layer recomputes it (nn/saved.h). Dropout masks are identical in the
// recomputation, because they have no generator state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "comm/group.h"
#include "config/memory.h"
#include "nn/saved.h"
#include "nn/segment.h"

namespace metroplex::nn {

// Blocks [begin, end) of a stage that backward recomputes together; recomputation starts at segment `segment` of
// block `begin`.
struct RecomputedChunk {
  size_t begin = 0, end = 0;
  size_t segment = 0;
};

// Returns the chunks in order; empty without recompute. memory.recompute_granularity = full: `uniform` groups the
// layers of the stage into chunks of recompute_num_layers (the last may be shorter); `block` makes each of the first
// recompute_num_layers layers one chunk. Selective with module moe: one chunk per MoE layer, from its router on.
std::vector<RecomputedChunk> recomputed_chunks(const config::Memory& memory, const Blocks& blocks);

// The saved inputs of a recomputed chunk. No input may be a pending sum.
class SavedInput {
 public:
  SavedInput() = default;
  // `split_over`: a group whose members have the same inputs. Each rank saves an equal shard of the flattened tensor.
  // Integer tensors are saved whole.
  SavedInput(const Values& in, const comm::Group& split_over, ActivationStore* store);
  void prefetch() const { set_.prefetch(); }
  Values take();  // all-gathers the shards: collective over `split_over`

 private:
  struct Entry {
    std::string name;
    Saved saved;
    std::vector<int64_t> sizes;  // unsharded sizes; empty if the whole tensor is saved
  };
  std::vector<Entry> saved_;
  SavedSet set_;
  comm::Group split_over_;
};

}  // namespace metroplex::nn
