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

void LoadMeter::count_lost(int64_t number, const at::Tensor& experts, const at::Tensor& lost) {
  const at::NoGradGuard no_grad;
  Layer& of = layer(number);
  of.tokens.sub_(tokens_per_expert(experts.masked_fill(lost.bitwise_not(), -1), num_experts_));
  of.dropped.add_(lost.sum());
}

const at::Tensor& LoadMeter::replicas_of(int64_t number) {
  at::Tensor& replicas = layer(number).replicas;
  if (!replicas.defined())
    replicas = at::zeros({kReplicaNumbers}, at::TensorOptions().dtype(at::kDouble).device(target_.memory()));
  return replicas;
}

void LoadMeter::count_replicas(int64_t number, const ReplicaPlan& plan) {
  const at::NoGradGuard no_grad;
  const at::Tensor sums = replicas_of(number), rows = plan.loads.to(at::kDouble);
  const at::Tensor even = rows.sum(1).div_(rows.size(1));
  const at::Tensor none = even.eq(0).to(at::kDouble);               // without rows the imbalance is 1
  const at::Tensor uneven = (rows.amax(1) + none) / (even + none);  // [2]: without and with replicas
  sums.select(0, kPlans).add_(1);
  sums.select(0, kReplicas).add_(plan.owners.ge(0).sum());
  sums.narrow(0, kBefore, 2).add_(uneven);
  const at::Tensor worst = sums.select(0, kWorstAfter);
  worst.copy_(at::maximum(worst, uneven.select(0, 1)));
}

void LoadMeter::reset_times() {
  for (auto& [number, of] : layers_) of.dispatch_ms = of.combine_ms = of.replicas_ms = 0;
}

}  // namespace metroplex::moe
