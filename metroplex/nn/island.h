// Neighbouring segments of a block that run as one piece of autograd graph: forward cuts the graph at the island's
// border (inputs become new roots, outputs are detached), and backward runs the engine from the output edges that
// forward left in an IslandRun. What a microbatch still holds is exactly its IslandRuns; an output is freed by
// dropping its last handle.
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
  // A parameter and how often the segments list it.
  struct Uses {
    Param* param;
    int times;
  };
  std::vector<Segment*> segments;
  std::vector<Uses> params;  // forward order
};
Island make_island(std::vector<Segment*> segments);
Island make_island(const Block& block);

// What one forward of one microbatch left for its backward, which consumes it. It does not hold the inputs: these
// live as long as a layer has saved them.
struct IslandRun {
  // Where the gradient of an output enters. Not valid for an output that needs none: integers, constants.
  using Edge = torch::autograd::Edge;
  struct Term {
    Edge edge;
    at::ScalarType dtype;
  };
  const Island* island = nullptr;     // outlives the run
  std::shared_ptr<Gradients> inputs;  // where the inputs' gradients arrive; null where there are no inputs
  std::vector<Edge> outputs;
  std::vector<Term> terms;                    // of the loss terms that the segments reported
  SavedSet saved;                             // offloaded until backward
  std::vector<std::function<void()>> starts;  // SegmentContext::starts
};

struct IslandForward {
  const Microbatch& batch;
  ActivationStore* store = nullptr;  // offloads what the layers save, before run_forward() returns; null: no offload
  LossTerms* terms = nullptr;        // gets the segments' loss terms, detached; null: not wanted
  bool is_recompute = false;         // as in SegmentContext
  RecomputeMemo* memo = nullptr;     // as in SegmentContext
};

// The outputs; pending sums among them have been computed. With `run` the forward is differentiable and fills it;
// without (evaluation) nothing is saved.
Values run_forward(const Island& island, const Values& in, const IslandForward& how, IslandRun* run);
// The weight gradients of an island, deferred: zero-bubble schedules run them as an action of their own.
struct DeferredGradients {
  const Island* island = nullptr;
  bool tells_uses = true;
  std::vector<std::function<void()>> calls;
};
// Adds the gradients that run_backward() deferred, and counts the uses. Once.
void add_gradients(DeferredGradients deferred);

// Gradients of the inputs. `dy` has one gradient per output, undefined where there is none; loss terms enter with
// `loss_factor`, a 0-dim tensor that may be undefined where there are none. Every parameter of the island counts its
// uses, whether or not the engine reached it. Runs in the caller's thread. tells_uses: see Param::begin_backward.
// With `deferred` the weight gradients are not computed: what computes them is put there, with the tensors that it
// needs, and no use is counted yet.
Gradients run_backward(IslandRun run, const Gradients& dy, const at::Tensor& loss_factor, bool tells_uses = true,
                       DeferredGradients* deferred = nullptr);

}  // namespace metroplex::nn
