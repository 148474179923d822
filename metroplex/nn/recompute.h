// Activation recompute. Full: for some chunks of layers only the inputs are saved, whole or split over the
// tensor-parallel ranks (ZeRO-R), and backward runs their forward again. By module: the output of a layer is dropped
// after its use, and the backward of the next layer recomputes it (nn/saved.h). Dropout masks are the same the second
// time because they have no generator state.
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

// Blocks [begin, end) of a stage that backward recomputes together; of block `begin` only from segment `segment` on.
struct RecomputedChunk {
  size_t begin = 0, end = 0;
  size_t segment = 0;
};

// memory.recompute_granularity = full: uniform cuts the stage's layers into chunks of recompute_num_layers (the last
// may be shorter), block takes the first recompute_num_layers, each for itself. Selective with module moe: of every
// layer with experts what begins with the router. In order; empty otherwise.
std::vector<RecomputedChunk> recomputed_chunks(const config::Memory& memory, const Blocks& blocks);

// The saved inputs of a recomputed chunk. None is a pending sum.
class SavedInput {
 public:
  SavedInput() = default;
  // `split_over`: a group whose members hold the same inputs; each saves an equal part of the flattened tensor.
  // Integer tensors are saved whole.
  SavedInput(const Values& in, const comm::Group& split_over, ActivationStore* store);
  void prefetch() const { set_.prefetch(); }
  Values take();  // all-gathers the parts: collective over `split_over`

 private:
  struct One {
    std::string name;
    Saved saved;
    std::vector<int64_t> sizes;  // of the whole; empty where the whole is kept
  };
  std::vector<One> saved_;
  SavedSet set_;
  comm::Group split_over_;
};

}  // namespace metroplex::nn
