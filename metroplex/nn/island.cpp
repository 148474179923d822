#include "nn/island.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/error.h"
#include "comm/autograd_node.h"

namespace metroplex::nn {
namespace {

// The same values as new roots, whose gradients go to `gradients`. A leaf would keep the values until its backward.
// Integers have no gradient.
Values cut(const Values& in, const std::shared_ptr<Gradients>& gradients) {
  Values out;
  size_t i = 0;
  for (const auto& [name, value] : in) {
    at::Tensor root = value.tensor().variable_data();
    if (root.is_floating_point()) {
      root = comm::attach(std::move(root), {}, [gradients, i](const at::Tensor& gradient) -> comm::Gradients {
        (*gradients)[i] = gradient;
        return {};
      });
    }
    out.add(name, std::move(root));
    ++i;
  }
  return out;
}

// What the last segment read is held until its sums are made.
Values through(const Island& island, Values in, SegmentContext& context) {
  Values out = island.segments.front()->forward(in, context);
  for (size_t i = 1; i < island.segments.size(); ++i) {
    in = std::move(out);
    out = island.segments[i]->forward(in, context);
  }
  for (Values::Entry& entry : out) entry.value.make(context.batch);
  return out;
}

torch::autograd::Edge edge_of(const at::Tensor& x) {
  return x.requires_grad() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge();
}

void hand_over(LossTerms& terms, LossTerms* to) {
  if (to == nullptr) return;
  for (LossTerm& term : terms) to->push_back({std::move(term.name), term.sum.detach()});
}

}  // namespace

Island make_island(std::vector<Segment*> segments) {
  Island island;
  island.segments = std::move(segments);
  for (Segment* segment : island.segments) {
    std::vector<Param*> told;
    segment->collect_params(told);
    for (auto param_at = told.begin(); param_at != told.end(); ++param_at) {
      Param* const param = *param_at;
      if (std::find(told.begin(), param_at, param) != param_at) continue;
      const auto known = std::find_if(island.params.begin(), island.params.end(),
                                      [&](const Island::Uses& uses) { return uses.param == param; });
      if (known == island.params.end()) {
        island.params.push_back({param, 1});
      } else {
        ++known->segments;
      }
    }
  }
  return island;
}

Island make_island(const Block& block) {
  std::vector<Segment*> segments;
  for (const auto& segment : block.segments) segments.push_back(segment.get());
  return make_island(std::move(segments));
}

Values run_forward(const Island& island, const Values& in, const IslandForward& how, IslandRun* run) {
  SegmentContext context{how.batch, how.is_recompute, {}};
  if (run == nullptr) {
    const at::NoGradGuard no_grad;
    Values out = through(island, in, context);
    hand_over(context.terms, how.terms);
    return out;
  }
  const at::AutoGradMode with_grad(true);
  run->island = &island;
  if (!in.empty()) run->inputs = std::make_shared<Gradients>(in.size());
  if (how.store != nullptr) how.store->begin();
  Values out = through(island, cut(in, run->inputs), context);
  bool way_back = false;
  for (Values::Entry& entry : out) {
    const at::Tensor& tensor = entry.value.tensor();
    run->outputs.push_back(edge_of(tensor));
    way_back = way_back || run->outputs.back().is_valid();
    entry.value = tensor.detach();
  }
  for (const LossTerm& term : context.terms) {
    run->terms.push_back({edge_of(term.sum), term.sum.scalar_type()});
    MPX_ASSERT(run->terms.back().edge.is_valid() && term.sum.dim() == 0, "the loss term ", term.name,
               " is not a differentiable scalar");
    way_back = true;
  }
  MPX_ASSERT(way_back, "segment ", island.segments.back()->name(), " left no way back");
  hand_over(context.terms, how.terms);
  if (how.store != nullptr) run->saved = how.store->end();
  return out;
}

// The engine ends the process when a root has no gradient, so only edges that got one are named.
Gradients run_backward(IslandRun run, const Gradients& dy, const at::Tensor& loss_factor, bool tells_uses) {
  MPX_ASSERT(run.island != nullptr && dy.size() == run.outputs.size(), dy.size(), " gradients for ",
             run.outputs.size(), " outputs");
  // The engine may run nodes on its own threads only for CUDA; rank threads that share a device would block there.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  run.saved.restore();
  torch::autograd::edge_list roots;
  Gradients gradients;
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!dy[i].defined() || !run.outputs[i].is_valid()) continue;
    roots.push_back(std::move(run.outputs[i]));
    gradients.push_back(dy[i]);
  }
  MPX_ASSERT(run.terms.empty() || loss_factor.defined(), "loss terms without a factor");
  for (IslandRun::Term& term : run.terms) {
    roots.push_back(std::move(term.edge));
    gradients.push_back(loss_factor.to(term.dtype));
  }
  for (const Island::Uses& uses : run.island->params) uses.param->begin_backward(tells_uses);
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true, {});
  }
  for (const Island::Uses& uses : run.island->params) uses.param->end_backward(uses.segments);
  return run.inputs ? std::move(*run.inputs) : Gradients();
}

}  // namespace metroplex::nn
