// A segment is a part of a block that takes and returns named values. Its borders are where recompute, offload,
// parameter gathering and graph capture may attach. A block, such as a transformer layer, is a list of segments; a
// stage is a list of blocks. A segment does not know how many of its neighbours run with it as one island (island.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/cuda_graph.h"
#include "nn/microbatch.h"
#include "nn/param.h"
#include "nn/value.h"

namespace metroplex::nn {

// An auxiliary loss of one microbatch: the scalar sum over its tokens, as the loss of the head is.
struct LossTerm {
  std::string name;
  at::Tensor sum;
};
using LossTerms = std::vector<LossTerm>;

// Values of a forward that its recomputation must reuse because computing them again would give something else (a
// running count, say). In the order in which SegmentContext::once() was called.
struct RecomputeMemo {
  std::vector<at::Tensor> values;
  size_t next = 0;  // index of the value that the recomputation reads next
};

// What a forward is handed beside its values.
struct SegmentContext {
  const Microbatch& batch;
  bool is_recompute = false;      // backward runs this forward again: counters and meters must not count it twice
  LossTerms terms;                // appended to by segments; backward starts from each with the microbatch's factor
  RecomputeMemo* memo = nullptr;  // null: this forward is not, and will not be, recomputed
  // Called when the forward of the island ends: each waits for what a segment left under way, unless a later segment
  // of the island has waited for it.
  std::vector<std::function<void()>> joins{};
  // Called when the backward of the island begins, to start what its segments will wait for.
  std::vector<std::function<void()>> starts{};

  // Returns compute(); in a recomputation, the value of the corresponding call in the first forward.
  at::Tensor once(const std::function<at::Tensor()>& compute);
};

// What decides, before a segment runs, whether it can be captured as a graph.
struct SegmentTraits {
  bool needs_host = false;                             // the host reads device results, so it cannot be captured
  bool static_shapes = true;                           // output shapes follow from input shapes
  std::optional<config::CudaGraphModule> module = {};  // its name in train.cuda_graph_modules; none: never named
};

class Segment {
 public:
  virtual ~Segment() = default;
  virtual const std::string& name() const = 0;
  // `in` is empty for the first segment of the model, which reads the microbatch alone. Backward must not hold an
  // output tensor, so that dropping the last handle of the output frees it.
  virtual Values forward(const Values& in, SegmentContext& context) = 0;
  // Appends every parameter that the segment reads, in forward order, as often as it reads it; a shared one is
  // appended by each segment that reads it. The pointers stay valid for the segment's life.
  virtual void collect_params(std::vector<Param*>& params) = 0;
  // The same for its buffers.
  virtual void collect_buffers(std::vector<Buffer*>& /*buffers*/) {}
  // Appends accumulators of a training step other than Buffer::pending. They are zeroed when a step begins, so that a
  // repeated step counts once.
  virtual void collect_step_counts(std::vector<at::Tensor>& /*counts*/) {}
  virtual SegmentTraits traits() const { return {}; }
};

struct Block {
  std::string name;
  bool is_layer = false;  // one of the model's num_layers, which is what full recompute counts
  std::vector<std::unique_ptr<Segment>> segments;
};
using Blocks = std::vector<Block>;

// All parameters that the segments list, each once, in the order in which they are first told.
std::vector<Param*> params_of(const Block& block);
std::vector<Param*> params_of(const Blocks& blocks);
// Sets Param::uses_per_microbatch: how often segments list the parameter.
void count_uses(const std::vector<const Blocks*>& stages);

}  // namespace metroplex::nn
