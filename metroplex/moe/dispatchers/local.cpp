// All experts are here: tokens are sorted by expert, and nothing travels. As many rows as there are assignments.
#include "moe/dispatcher.h"
#include "moe/permutation_values.h"

namespace metroplex::moe {
namespace {

class LocalDispatcher final : public Dispatcher {
 public:
  using Dispatcher::Dispatcher;
  bool needs_host() const override { return false; }

  Dispatched send(const at::Tensor& x, const Routing& routing, const std::function<void()>& meanwhile) override {
    const Permutation p = permutation(spec_.target, routing.experts,
                                      {.num_experts = spec_.num_experts(), .num_rows = routing.experts.numel()});
    if (meanwhile) meanwhile();
    Dispatched out{{permute(spec_.target, x, p), permute_probs(spec_.target, routing.probs, p), p.counts}, {}};
    add_permutation(out.state, "dispatch", p);
    return out;
  }

  at::Tensor bring_back(const at::Tensor& y, const nn::Values& state) override {
    return unpermute(spec_.target, y, permutation_in(state, "dispatch", spec_.topk()));
  }
};

}  // namespace

std::unique_ptr<Dispatcher> make_local(DispatcherSpec spec) {
  return std::make_unique<LocalDispatcher>(std::move(spec));
}

}  // namespace metroplex::moe
