// An autograd region (`Region`): consecutive segments of a block that run as one autograd graph. Forward cuts the
// graph at the region's boundary: inputs become new roots, and outputs are detached. Backward runs the engine from
// the output edges that forward stored in a RegionRun. The RegionRuns of a microbatch hold all of its saved state.
// An output is freed when its last handle is dropped.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <vector>

#include "nn/autograd_node.h"
#include "nn/saved.h"
#include "nn/segment.h"

namespace metroplex::nn {

struct Region {
  // A parameter and the number of times that the segments list it.
  struct Uses {
    Param* param;
    int times;
  };
  std::vector<Segment*> segments;
  std::vector<Uses> params;    // forward order
  bool defers_weights = true;  // SegmentTraits::defers_weights of all segments
};
Region make_region(std::vector<Segment*> segments);
Region make_region(const Block& block);

// State that one forward of one microbatch saves for its backward, which consumes it. It does not hold the inputs,
// except those that a layer has saved.
struct RegionRun {
  // The edge where the gradient of an output enters; invalid for outputs without gradient (integers, constants).
  using Edge = torch::autograd::Edge;
  struct Term {
    Edge edge;
    at::ScalarType dtype;
  };
  const Region* region = nullptr;     // must outlive the run
  std::shared_ptr<Gradients> inputs;  // receives the inputs' gradients; null if there are no inputs
  std::vector<Edge> outputs;
  std::vector<Term> terms;                    // loss terms reported by the segments
  SavedSet saved;                             // offloaded until backward
  std::vector<std::function<void()>> starts;  // SegmentContext::starts
};

struct RegionForward {
  const Microbatch& batch;
  ActivationStore* store = nullptr;  // offloads saved tensors before run_forward() returns; null: no offload
  LossTerms* terms = nullptr;        // receives the segments' loss terms, detached; may be null
  bool is_recompute = false;         // as in SegmentContext
  RecomputeMemo* memo = nullptr;     // as in SegmentContext
};

// Returns the outputs, with pending sums computed. With `run` the forward is differentiable and fills it; without
// `run` (evaluation) nothing is saved.
Values run_forward(const Region& region, const Values& in, const RegionForward& how, RegionRun* run);
// Deferred weight gradients of a region. Zero-bubble schedules run them as a separate action.
struct DeferredGradients {
  const Region* region = nullptr;
  bool notifies_uses = true;
  std::vector<std::function<void()>> calls;
};
// Adds the gradients that run_backward() deferred, and counts the uses. Call it once.
void add_gradients(DeferredGradients deferred);

// Returns the gradients of the inputs. `dy` has one gradient per output, undefined where there is none. Loss terms
// enter with `loss_factor`, a 0-dim tensor that may be undefined if there are none. Every parameter of the region
// counts its uses, even if the engine did not reach it. Runs in the caller's thread. notifies_uses: see
// Param::begin_backward. If `deferred` is not null, it receives closures that compute the weight gradients and own
// the tensors they need; no use is counted until add_gradients().
Gradients run_backward(RegionRun run, const Gradients& dy, const at::Tensor& loss_factor, bool notifies_uses = true,
                       DeferredGradients* deferred = nullptr);

}  // namespace metroplex::nn
