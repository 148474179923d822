// A segment is one step of a block's computation that takes and returns named values. Recompute, offload, parameter
// gathering and graph capture may attach at its boundaries. A block, such as a transformer layer, is a list of
// segments; a stage is a list of blocks. A segment does not depend on how many adjacent segments share its autograd
// region (`region.h`).
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

// An auxiliary loss of one microbatch: the scalar sum over its tokens, like the loss of the head.
struct LossTerm {
  std::string name;
  at::Tensor sum;
};
using LossTerms = std::vector<LossTerm>;

// Values of a forward that its recomputation must reuse, because a second computation would differ (a running count,
// for example). They are in the order of the SegmentContext::once() calls.
struct RecomputeMemo {
  std::vector<at::Tensor> values;
  size_t next = 0;
};

struct SegmentContext {
  const Microbatch& batch;
  bool is_recompute = false;      // backward runs this forward again: counters and meters must skip it
  LossTerms terms;                // segments append; backward starts from each with the microbatch's factor
  RecomputeMemo* memo = nullptr;  // null: this forward is not recomputed, neither now nor later
  // run_forward() calls these at the end of the region's forward. Each waits for an asynchronous operation of a
  // segment, unless a later segment of the region has already waited for it.
  std::vector<std::function<void()>> joins{};
  // run_backward() calls these first. They start operations that the region's segments will wait for.
  std::vector<std::function<void()>> starts{};

  // Returns compute() in the first forward; in a recomputation returns the value of the corresponding first call.
  at::Tensor once(const std::function<at::Tensor()>& compute);
};

struct SegmentTraits {
  bool needs_host = false;                             // the host reads device results, so capture is impossible
  bool static_shapes = true;                           // output shapes depend only on input shapes
  std::optional<config::CudaGraphModule> module = {};  // its name in train.cuda_graph_modules
  // False: weight gradients are computed in the backward even if the schedule has weight actions, because their
  // inputs are large (the logits of a head).
  bool defers_weights = true;
};

class Segment {
 public:
  virtual ~Segment() = default;
  virtual const std::string& name() const = 0;
  // `in` is empty for the first segment of the model, which reads only the microbatch. The autograd graph must not
  // hold an output tensor, so that dropping the output's last handle frees it.
  virtual Values forward(const Values& in, SegmentContext& context) = 0;
  // Appends every parameter that the segment reads, in forward order, once per read. Each segment that reads a shared
  // parameter appends it. The pointers stay valid for the segment's life.
  virtual void collect_params(std::vector<Param*>& params) = 0;
  // Appends the segment's buffers, with the same rules.
  virtual void collect_buffers(std::vector<Buffer*>& /*buffers*/) {}
  // Appends per-step accumulators other than Buffer::pending. They are zeroed when a step begins, so that a repeated
  // step counts once.
  virtual void collect_step_counts(std::vector<at::Tensor>& /*counts*/) {}
  virtual SegmentTraits traits() const { return {}; }
};

struct Block {
  std::string name;
  bool is_layer = false;  // one of the model's num_layers; full recompute counts these
  std::vector<std::unique_ptr<Segment>> segments;
};
using Blocks = std::vector<Block>;

// Returns all parameters that the segments list, each once, in the order of first occurrence.
std::vector<Param*> list_params(const Block& block);
std::vector<Param*> list_params(const Blocks& blocks);
// Sets Param::uses_per_microbatch to the number of times that segments list the parameter.
void count_uses(const std::vector<const Blocks*>& stages);

}  // namespace metroplex::nn
