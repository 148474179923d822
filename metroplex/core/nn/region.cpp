#include "nn/region.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace metroplex::nn {
namespace {

// Returns the same values as roots of a new graph, whose gradients go to `gradients`. Each root is the output of a
// node, because an autograd leaf would keep its values alive until backward. Integer tensors have no gradient.
Values detach_inputs(const Values& in, const std::shared_ptr<Gradients>& gradients) {
  Values out;
  out.host = in.host;
  size_t i = 0;
  for (const auto& [name, value] : in) {
    at::Tensor root = value.tensor().variable_data();
    if (root.is_floating_point()) {
      root = attach(std::move(root), {}, [gradients, i](const at::Tensor& gradient) -> Gradients {
        (*gradients)[i] = gradient;
        return {};
      });
      nn::keep_gradient_type(root);
    }
    out.add(name, std::move(root));
    ++i;
  }
  return out;
}

torch::autograd::Edge output_edge(const at::Tensor& x) {
  return x.requires_grad() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge();
}

void append_terms(LossTerms& terms, LossTerms* to) {
  if (to == nullptr) return;
  for (LossTerm& term : terms) to->push_back({std::move(term.name), term.sum.detach()});
}

}  // namespace

Region make_region(std::vector<Segment*> segments) {
  Region region;
  region.segments = std::move(segments);
  for (Segment* segment : region.segments) {
    region.defers_weights = region.defers_weights && segment->traits().defers_weights;
    std::vector<Param*> listed;
    segment->collect_params(listed);
    for (Param* const param : listed) {
      if (param->frozen) continue;
      const auto known = std::find_if(region.params.begin(), region.params.end(),
                                      [&](const Region::Uses& uses) { return uses.param == param; });
      if (known == region.params.end()) {
        region.params.push_back({param, 1});
      } else {
        ++known->times;
      }
    }
  }
  return region;
}

Region make_region(const Block& block) {
  std::vector<Segment*> segments;
  for (const auto& segment : block.segments) segments.push_back(segment.get());
  return make_region(std::move(segments));
}

Values run_forward(const Region& region, const Values& in, const RegionForward& how, RegionRun* run) {
  SegmentContext context{how.batch, how.is_recompute, {}, how.memo};
  const at::AutoGradMode with_grad(run != nullptr);
  Values out;
  if (run != nullptr) {
    run->region = &region;
    if (!in.empty()) run->inputs = std::make_shared<Gradients>(in.size());
    if (how.store != nullptr) how.store->begin();
    out = detach_inputs(in, run->inputs);
  } else {
    out = in;
  }
  {
    Values x;  // keeps the inputs of the last segment alive until its pending sums are computed
    for (Segment* segment : region.segments) {
      x = std::move(out);
      out = segment->forward(x, context);
    }
    for (Values::Entry& entry : out) entry.value.compute(how.batch);
    for (const std::function<void()>& join : context.joins) join();
  }
  if (run == nullptr) {
    append_terms(context.terms, how.terms);
    return out;
  }
  run->starts = std::move(context.starts);
  bool is_differentiable = false;
  for (Values::Entry& entry : out) {
    const at::Tensor& tensor = entry.value.tensor();
    run->outputs.push_back(output_edge(tensor));
    is_differentiable = is_differentiable || run->outputs.back().is_valid();
    entry.value = tensor.detach();
  }
  for (const LossTerm& term : context.terms) {
    run->terms.push_back({output_edge(term.sum), term.sum.scalar_type()});
    MPX_ASSERT(run->terms.back().edge.is_valid() && term.sum.dim() == 0, "the loss term ", term.name,
               " is not a differentiable scalar");
    is_differentiable = true;
  }
  MPX_ASSERT(is_differentiable, "segment ", region.segments.back()->name(), " has no differentiable output");
  append_terms(context.terms, how.terms);
  if (how.store != nullptr) run->saved = how.store->end();
  return out;
}

namespace {

class DeferGuard {
 public:
  explicit DeferGuard(DeferredGradients& deferred) : island_(*deferred.region) {
    for (const Region::Uses& uses : island_.params) uses.param->deferred = &deferred.calls;
  }
  ~DeferGuard() {
    for (const Region::Uses& uses : island_.params) uses.param->deferred = nullptr;
  }
  DeferGuard(const DeferGuard&) = delete;
  DeferGuard& operator=(const DeferGuard&) = delete;

 private:
  const Region& island_;
};

struct Roots {
  torch::autograd::edge_list edges;
  Gradients gradients;
};

// Only edges with a gradient become roots: the engine aborts the process on a root without gradient.
Roots collect_roots(RegionRun& run, const Gradients& dy, const at::Tensor& loss_factor) {
  Roots roots;
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!dy[i].defined() || !run.outputs[i].is_valid()) continue;
    roots.edges.push_back(std::move(run.outputs[i]));
    roots.gradients.push_back(dy[i]);
  }
  MPX_ASSERT(run.terms.empty() || loss_factor.defined(),
             "backward of an autograd region with loss terms needs a loss factor");
  for (RegionRun::Term& term : run.terms) {
    roots.edges.push_back(std::move(term.edge));
    roots.gradients.push_back(loss_factor.to(term.dtype));
  }
  return roots;
}

// These enclose the accumulation of the weight gradients of one backward of the region.
void begin_gradients(const Region& region, bool notifies_uses) {
  for (const Region::Uses& uses : region.params) uses.param->begin_backward(notifies_uses);
}
void end_gradients(const Region& region) {
  for (const Region::Uses& uses : region.params) uses.param->end_backward(uses.times);
}

}  // namespace

void add_gradients(DeferredGradients deferred) {
  const at::NoGradGuard no_grad;
  begin_gradients(*deferred.region, deferred.notifies_uses);
  for (std::function<void()>& call : deferred.calls) std::exchange(call, nullptr)();
  end_gradients(*deferred.region);
}

Gradients run_backward(RegionRun run, const Gradients& dy, const at::Tensor& loss_factor, bool notifies_uses,
                       DeferredGradients* deferred) {
  MPX_ASSERT(run.region != nullptr && dy.size() == run.outputs.size(), dy.size(), " gradients for ",
             run.outputs.size(), " outputs");
  // By default the engine runs CUDA nodes on its own threads; rank threads that share a device would deadlock there.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  for (const std::function<void()>& start : run.starts) start();
  run.saved.restore();
  std::optional<DeferGuard> defer_guard;
  if (deferred != nullptr) {
    *deferred = {run.region, notifies_uses, {}};
    defer_guard.emplace(*deferred);
  } else {
    begin_gradients(*run.region, notifies_uses);
  }
  if (const Roots roots = collect_roots(run, dy, loss_factor); !roots.edges.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true, {});
  }
  if (deferred == nullptr) end_gradients(*run.region);
  return run.inputs ? std::move(*run.inputs) : Gradients();
}

}  // namespace metroplex::nn
