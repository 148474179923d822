// Recompute of activations. Full: of some chunks of layers only the inputs are kept, whole or split over
// tensor-parallel ranks (ZeRO-R), and backward runs their forward again. By module: a layer's output is dropped once
// it has been used and made again by the layer that follows, see nn/saved.h. Dropout is equal the second time because
// it has no state.
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

// Blocks [begin, end) of a stage, of the first one what begins with `segment`, that are run again as one.
struct RecomputedChunk {
  size_t begin = 0, end = 0;
  size_t segment = 0;
};

// memory.recompute_granularity = full: uniform cuts the stage's layers into chunks of recompute_num_layers (the last
// may be shorter), block takes the first recompute_num_layers, each for itself. Selective with module moe: of every
// layer with experts what begins with the router. In order; empty otherwise.
std::vector<RecomputedChunk> recomputed_chunks(const config::Memory& memory, const Blocks& blocks);

// The inputs of a chunk from forward to backward. All have been made.
class SavedInput {
 public:
  SavedInput() = default;
  // `split_over`: each member keeps an equal part of the flat tensor, which all hold whole; a group of one, and
  // integers, are kept whole.
  SavedInput(const Values& in, const comm::Group& split_over, ActivationStore* store);
  void prefetch() const { set_.prefetch(); }
  Values take();  // whole again; all members take part

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
