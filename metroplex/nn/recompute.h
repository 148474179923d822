// Recompute of activations. Full: of some chunks of blocks only the input is kept, whole or split over
// tensor-parallel ranks (ZeRO-R), and backward runs their forward again. By module: a layer's output is dropped once
// it has been used and made again by the layer that follows, see nn/saved.h. Dropout is equal the second time because
// it has no state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/memory.h"
#include "nn/norm.h"
#include "nn/saved.h"
#include "nn/segment.h"

namespace metroplex::nn {

// Segments [begin, end) of a stage that are run again as one.
struct RecomputedChunk {
  size_t begin = 0, end = 0;
};

// memory.recompute_granularity = full: uniform cuts the stage's blocks into chunks of recompute_num_layers (the last
// may be shorter), block takes the first recompute_num_layers, each for itself. In order; empty otherwise.
std::vector<RecomputedChunk> recomputed_chunks(const config::Memory& memory,
                                               const std::vector<std::unique_ptr<Segment>>& segments);

// The input of a chunk from forward to backward.
class KeptInput {
 public:
  KeptInput() = default;
  // `split_over`: each member keeps an equal part of the flat tensor, which all hold whole; a group of one keeps all.
  KeptInput(const at::Tensor& x, const comm::Group& split_over, ActivationStore* store);
  void prefetch() const { set_.prefetch(); }
  at::Tensor take();  // whole again; all members take part

 private:
  Saved saved_;
  SavedSet set_;
  comm::Group split_over_;
  std::vector<int64_t> sizes_;
};

// norm(x) as the input of the layers behind it; with saving.layernorm they do not keep it.
Input normalize(Norm& norm, const at::Tensor& x, const SavePolicy& saving);

}  // namespace metroplex::nn
