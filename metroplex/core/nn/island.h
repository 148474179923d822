// An autograd region (`Island`): consecutive segments of a block that run as one autograd graph. Forward cuts the
// graph at the region's boundary: inputs become new roots, and outputs are detached. Backward runs the engine from
// the output edges that forward stored in an IslandRun. The IslandRuns of a microbatch hold all of its saved state.
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

struct Island {
  // A parameter and the number of times that the segments list it.
  struct Uses {
    Param* param;
    int times;
  };
  std::vector<Segment*> segments;
  std::vector<Uses> params;  // forward order
};
Island make_island(std::vector<Segment*> segments);
Island make_island(const Block& block);

// State that one forward of one microbatch saves for its backward, which consumes it. It does not hold the inputs,
// except those that a layer has saved.
struct IslandRun {
  // The edge where the gradient of an output enters; invalid for outputs without gradient (integers, constants).
  using Edge = torch::autograd::Edge;
  struct Term {
    Edge edge;
    at::ScalarType dtype;
  };
  const Island* island = nullptr;     // must outlive the run
  std::shared_ptr<Gradients> inputs;  // receives the inputs' gradients; null if there are no inputs
  std::vector<Edge> outputs;
  std::vector<Term> terms;                    // loss terms reported by the segments
  SavedSet saved;                             // offloaded until backward
  std::vector<std::function<void()>> starts;  // SegmentContext::starts
};

struct IslandForward {
  const Microbatch& batch;
  ActivationStore* store = nullptr;  // offloads saved tensors before run_forward() returns; null: no offload
  LossTerms* terms = nullptr;        // receives the segments' loss terms, detached; may be null
  bool is_recompute = false;         // as in SegmentContext
  RecomputeMemo* memo = nullptr;     // as in SegmentContext
};

// Returns the outputs, with pending sums computed. With `run` the forward is differentiable and fills it; without
// `run` (evaluation) nothing is saved.
Values run_forward(const Island& island, const Values& in, const IslandForward& how, IslandRun* run);
// Deferred weight gradients of a region. Zero-bubble schedules run them as a separate action.
struct DeferredGradients {
  const Island* island = nullptr;
  bool tells_uses = true;
  std::vector<std::function<void()>> calls;
};
// Adds the gradients that run_backward() deferred, and counts the uses. Call it once.
void add_gradients(DeferredGradients deferred);

// Returns the gradients of the inputs. `dy` has one gradient per output, undefined where there is none. Loss terms
// enter with `loss_factor`, a 0-dim tensor that may be undefined if there are none. Every parameter of the region
// counts its uses, even if the engine did not reach it. Runs in the caller's thread. tells_uses: see
// Param::begin_backward. If `deferred` is not null, it receives closures that compute the weight gradients and own
// the tensors they need; no use is counted until add_gradients().
Gradients run_backward(IslandRun run, const Gradients& dy, const at::Tensor& loss_factor, bool tells_uses = true,
                       DeferredGradients* deferred = nullptr);

}  // namespace metroplex::nn
