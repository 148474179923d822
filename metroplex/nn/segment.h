// A segment is an autograd island: forward cuts the graph at its border, backward runs the engine on the edges that
// forward left. What a microbatch still holds is exactly its SegmentRuns. Outputs are freed by dropping handles.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <string>
#include <vector>

#include "nn/microbatch.h"
#include "nn/param.h"

namespace metroplex::nn {

class Segment {
 public:
  virtual ~Segment() = default;
  virtual const std::string& name() const = 0;
  // x_sbh: [s (/tp with sequence parallelism), b, h], undefined for a first segment that reads batch.tokens.
  virtual at::Tensor forward(const at::Tensor& x_sbh, const Microbatch& batch) = 0;
  // Appends pointers that stay valid for the segment's life, in forward order.
  virtual void collect_params(std::vector<Param*>& params) = 0;
};

// What one forward of one microbatch left behind. Movable; consumed by backward.
struct SegmentRun {
  at::Tensor input;              // the cut input whose grad is read
  torch::autograd::Edge output;  // where the output's gradient enters
};

// With `run`, the forward is differentiable and leaves its run there; without (evaluation) nothing is kept.
at::Tensor run_forward(Segment& segment, const at::Tensor& x, const Microbatch& batch, SegmentRun* run);
// Gradient of the input (undefined when there was none). Runs in the caller's thread.
at::Tensor run_backward(SegmentRun run, const at::Tensor& dy);

}  // namespace metroplex::nn
