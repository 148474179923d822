#include "moe/forced.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/autograd_node.h"
#include "device/launch_point.h"

namespace metroplex::moe {

ForcedRouting::ForcedRouting(int64_t layer, const config::Model& model, const nn::LayerContext& context,
                             const ExpertContext& experts)
    : draws_(model.moe_router_force_load_balancing || model.moe_router_force_skew > 0),
      skew_(model.moe_router_force_skew),
      period_(model.moe_router_force_skew_period),
      num_experts_(model.num_moe_experts),
      noise_(layer, nn::RandomSite::router_logits, context),
      target_(context.target),
      parts_(experts.tp_cp.size()),
      part_(experts.tp_cp.index()) {
  if (experts.forced_loads) loads_ = experts.forced_loads->at(layer);
  if (!model.moe_router_force_even) return;
  const at::Tensor number = at::arange(num_experts_, at::TensorOptions().dtype(at::kLong).device(target_.memory()));
  const int64_t local = num_experts_ / experts.ep;
  turns_ = number.remainder(local).mul(experts.ep).add(at::div(number, local, "floor"));
}

// Each rank's share of each microbatch continues the round-robin order where the previous share stopped. Over any
// number of shares, the loads of two experts differ by at most 1. The ep ranks have equal loads if all source ranks
// of a layer's experts have the same number of tokens.
at::Tensor ForcedRouting::even_counts(int64_t tokens, int64_t k, const nn::Microbatch& batch) const {
  const int64_t all = tokens * k, left = all % num_experts_;
  const at::Tensor first = batch.counters.samples.narrow(0, 0, 1);
  const at::Tensor microbatch = at::div(first, batch.counters.samples.numel(), "floor").remainder(num_experts_);
  const at::Tensor begin = microbatch.mul(parts_).add(part_).mul(left);
  return (turns_ - begin).remainder(num_experts_).lt(left).to(at::kLong).add(all / num_experts_);
}

at::Tensor ForcedRouting::log_weights(const nn::Microbatch& batch, const at::TensorOptions& options) const {
  at::Tensor place = at::arange(num_experts_, options.dtype(at::kLong));
  MPX_ASSERT(period_ == 0 || batch.counters.step.defined(), "a load moves on by steps, and a microbatch has no step");
  if (period_ > 0) place = (place - at::div(batch.counters.step, period_, "floor")).remainder(num_experts_);
  return place.add(1).to(options.dtype()).log_().mul_(-skew_);
}

at::Tensor ForcedRouting::draw(const at::Tensor& logits, int64_t samples, const nn::Microbatch& batch) const {
  at::Tensor drawn;
  {
    const at::NoGradGuard no_grad;
    const nn::DropoutMask rows = noise_.rows(logits.detach().view({-1, samples, num_experts_}), batch);
    drawn = noise_.draw(Noise::gumbel, rows, logits.scalar_type());
    if (skew_ > 0) drawn.add_(log_weights(batch, drawn.options()));
  }
  return nn::attach(drawn, {logits}, [](const at::Tensor& dy) -> nn::Gradients { return {dy}; });
}

at::Tensor ForcedRouting::deal(int64_t tokens, int64_t k, const nn::Microbatch& batch) {
  const at::NoGradGuard no_grad;
  if (turns_.defined()) return deal_out(even_counts(tokens, k, batch), tokens, k);
  const auto steps = static_cast<int64_t>(loads_.size());
  if (dealt_tokens_ != tokens) {
    std::vector<int64_t> counts;
    for (const std::vector<int64_t>& loads : loads_) {
      const std::vector<int64_t> of_step = dealt_counts(loads, tokens, k);
      counts.insert(counts.end(), of_step.begin(), of_step.end());
    }
    const at::Tensor host = at::tensor(counts, at::kLong).view({steps, num_experts_});
    counts_ = at::empty(host.sizes(), host.options().device(target_.memory()));
    device::write_from_host(target_, counts_, host);
    dealt_tokens_ = tokens;
  }
  MPX_ASSERT(batch.counters.step.defined(), "loads are recorded by step, and a microbatch has no step");
  return deal_out(nn::select_rows(counts_, 0, batch.counters.step.remainder(steps)).view({num_experts_}), tokens, k);
}

}  // namespace metroplex::moe
