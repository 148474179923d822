// Neighbouring segments of a block with nothing hung between them run as one autograd island: forward cuts the graph
// at its border, backward runs the engine on the edges that forward left. What a microbatch still holds is exactly
// its IslandRuns. Outputs are freed by dropping handles.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <vector>

#include "nn/saved.h"
#include "nn/segment.h"

namespace metroplex::nn {

struct Island {
  // A parameter and how many of the segments list it.
  struct Uses {
    Param* param;
    int segments;
  };
  std::vector<Segment*> segments;
  std::vector<Uses> params;  // forward order
};
Island make_island(std::vector<Segment*> segments);
Island make_island(const Block& block);

// One an input or output of an island, in order; undefined where there is none.
using Gradients = std::vector<at::Tensor>;

// What one forward of one microbatch left behind. Movable; consumed by backward. The inputs themselves live only as
// long as something that backward needs.
struct IslandRun {
  // Where a gradient enters. Not valid for an output without a way back: integers, constants.
  using Edge = torch::autograd::Edge;
  struct Term {
    Edge edge;
    at::ScalarType dtype;
  };
  const Island* island = nullptr;     // outlives the run
  std::shared_ptr<Gradients> inputs;  // where the inputs' gradients arrive; null where there are no inputs
  std::vector<Edge> outputs;
  std::vector<Term> terms;  // of losses that the segments reported
  SavedSet saved;           // what lies elsewhere until then
};

struct IslandForward {
  const Microbatch& batch;
  ActivationStore* store = nullptr;  // what the layers keep through it is moved away before the return
  LossTerms* terms = nullptr;        // gets what the segments report, without a way back; null: not wanted
  bool is_recompute = false;         // see SegmentContext
};

// Pending values among the results have been made. With `run`, the forward is differentiable and leaves its run
// there; without (evaluation) nothing is kept.
Values run_forward(const Island& island, const Values& in, const IslandForward& how, IslandRun* run);
// Gradients of the inputs. `dy` has one gradient an output; the loss terms enter with `loss_factor`, a tensor without
// dims, which may be undefined where there are none. Every parameter of the island counts its uses, reached or not.
// Runs in the caller's thread. tells_uses: see Param::begin_backward.
Gradients run_backward(IslandRun run, const Gradients& dy, const at::Tensor& loss_factor, bool tells_uses = true);

}  // namespace metroplex::nn
