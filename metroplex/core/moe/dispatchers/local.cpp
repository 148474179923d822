// All experts are local: tokens are sorted by expert and not sent. There is one row per assignment.
#include "moe/dispatcher.h"

namespace metroplex::moe {
namespace {

class LocalDispatcher final : public Dispatcher {
 public:
  using Dispatcher::Dispatcher;

  DispatchPlan plan(const at::Tensor& experts) const override {
    return {permutation(spec_.target, experts, {.num_experts = spec_.columns(), .num_rows = experts.numel()}), {}};
  }

  DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const override {
    return {std::move(plan), round_rows(spec_.dispatch_formats(), x), probs, {}, {}};
  }

  Dispatched finish_dispatch(DispatchUnderWay way) const override {
    const Permutation& permutation = way.plan.permutation;
    const PermutedRows rows = permute(spec_.target, way.x, way.probs, permutation);
    return {{rows.x, rows.probs, permutation.counts}, {permutation, {}, {}}};
  }

  at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const override {
    return round_rows(spec_.combine_formats(), unpermute(spec_.target, y, back.permutation));
  }
};

}  // namespace

std::unique_ptr<Dispatcher> make_local(DispatcherSpec spec) {
  return std::make_unique<LocalDispatcher>(std::move(spec));
}

}  // namespace metroplex::moe
