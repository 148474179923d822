#include "moe/load_meter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "moe/routing.h"

namespace metroplex::moe {

LoadMeter::Layer& LoadMeter::layer(int64_t number) {
  const auto [at, fresh] = layers_.try_emplace(number);
  if (fresh) {
    const auto options = at::TensorOptions().dtype(at::kLong).device(target_.memory());
    at->second.counts = at::zeros({num_experts_ + 1}, options);
    at->second.tokens = at->second.counts.narrow(0, 0, num_experts_);
    at->second.dropped = at->second.counts.narrow(0, num_experts_, 1);
  }
  return at->second;
}

void LoadMeter::count(int64_t number, const at::Tensor& experts) {
  const at::NoGradGuard no_grad;
  Layer& of = layer(number);
  of.tokens.add_(tokens_per_expert(experts, num_experts_));
  of.dropped.add_(experts.lt(0).sum());
}

void LoadMeter::reset_times() {
  for (auto& [number, of] : layers_) of.dispatch_ms = of.combine_ms = 0;
}

}  // namespace metroplex::moe
