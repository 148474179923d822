#include "moe/forced.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "comm/autograd_node.h"

namespace metroplex::moe {

ForcedRouting::ForcedRouting(int64_t layer, const config::Model& model, const nn::LayerContext& context)
    : draws_(model.moe_router_force_load_balancing || model.moe_router_force_skew > 0),
      skew_(model.moe_router_force_skew),
      period_(model.moe_router_force_skew_period),
      num_experts_(model.num_moe_experts),
      noise_(layer, nn::RandomSite::router_logits, context) {}

at::Tensor ForcedRouting::log_weights(const nn::Microbatch& batch, const at::TensorOptions& options) const {
  at::Tensor place = at::arange(num_experts_, options.dtype(at::kLong));
  if (period_ > 0 && batch.step.defined())
    place = (place - at::div(batch.step, period_, "floor")).remainder(num_experts_);
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
  return comm::attach(drawn, {logits}, [](const at::Tensor& dy) -> comm::Gradients { return {dy}; });
}

}  // namespace metroplex::moe
