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
#include "nn/saved.h"

namespace metroplex::nn {

class Segment {
 public:
  virtual ~Segment() = default;
  virtual const std::string& name() const = 0;
  // x_sbh: [s (/tp with sequence parallelism), b, h], undefined for a first segment that reads batch.tokens.
  virtual at::Tensor forward(const at::Tensor& x_sbh, const Microbatch& batch) = 0;
  // Appends pointers that stay valid for the segment's life, in forward order; all that the segment reads, so that a
  // shared one is told by several segments.
  virtual void collect_params(std::vector<Param*>& params) = 0;
  // Appends its state without gradient, likewise.
  virtual void collect_buffers(std::vector<Buffer*>& /*buffers*/) {}
  // One of the model's num_layers, which is what full recompute counts.
  virtual bool is_block() const { return false; }
};

// What one forward of one microbatch left behind. Movable; consumed by backward. The input itself lives only as long
// as something that backward needs.
struct SegmentRun {
  std::shared_ptr<at::Tensor> dx;  // where the input's gradient arrives; null where there was no input
  torch::autograd::Edge output;    // where the output's gradient enters
  SavedSet saved;                  // what lies elsewhere until then
};

// With `run`, the forward is differentiable and leaves its run there; without (evaluation) nothing is kept. With
// `store`, what the layers keep through it is moved away before the return.
at::Tensor run_forward(Segment& segment, const at::Tensor& x, const Microbatch& batch, SegmentRun* run,
                       ActivationStore* store = nullptr);
// Gradient of the input (undefined when there was none). Runs in the caller's thread.
at::Tensor run_backward(SegmentRun run, const at::Tensor& dy);

}  // namespace metroplex::nn
