#include "step/stage_loads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "comm/collectives.h"
#include "config/experts.h"
#include "moe/load_meter.h"

namespace metroplex::step {
namespace {

// Max / mean for each step and layer; 1 without any load.
at::Tensor largest_over_mean(const at::Tensor& largest, const at::Tensor& sum, int64_t among) {
  return at::where(sum.gt(0), largest * static_cast<double>(among) / sum, 1.0);
}

}  // namespace

bool needs_expert_loads(const config::Config& config) {
  return config.model.has_experts() &&
         (config.train.log_experts_interval > 0 || !config.train.expert_trace_file.empty());
}

StageLoads::StageLoads(const moe::ExpertContext& experts, int64_t num_experts, int64_t steps, int64_t max_counts)
    : experts_(experts), num_experts_(num_experts), max_steps_(steps), max_counts_(max_counts) {}

void StageLoads::make(int64_t layers) {
  const auto options = at::TensorOptions().device(experts_.meter->layers().begin()->second.counts.device());
  const int64_t rows = std::min(max_steps_, std::max<int64_t>(1, max_counts_ / (layers * num_experts_)));
  pending_ = at::zeros({rows, layers, num_experts_ + 1}, options.dtype(at::kInt));
  counts_ = at::zeros({layers, num_experts_ + 1}, options.dtype(at::kDouble));
  rank_counts_ = at::zeros({layers, experts_.ep}, counts_.options());
  summed_ = at::zeros({layers, 2}, counts_.options());
  worst_ = at::zeros({layers, 2}, counts_.options());
  times_ = at::zeros({layers, 3}, at::kDouble);
  replica_counts_ = at::zeros({layers, moe::LoadMeter::kReplicaNumbers}, counts_.options());
}

void StageLoads::add_step() {
  const auto& layers = experts_.meter->layers();
  ++steps_;
  if (layers.empty()) return;
  if (!pending_.defined()) make(static_cast<int64_t>(layers.size()));
  if (pending_steps_ == pending_.size(0)) reduce_counts();
  std::vector<at::Tensor> counts;
  auto* times = times_.mutable_data_ptr<double>();
  for (const auto& [number, of] : layers) {
    counts.push_back(of.counts);
    *times++ += of.dispatch_ms;
    *times++ += of.combine_ms;
    *times++ += of.replicas_ms;
  }
  add_replica_counts();
  pending_.select(0, pending_steps_++).copy_(at::stack(counts));
  experts_.meter->reset_times();
}

void StageLoads::add_replica_counts() {
  constexpr int64_t kWorst = moe::LoadMeter::kWorstAfter;
  int64_t row = 0;
  for (const auto& [number, of] : experts_.meter->layers()) {
    const at::Tensor sums = replica_counts_.select(0, row++);
    if (!of.replicas.defined()) continue;
    const at::Tensor worst = at::maximum(sums.select(0, kWorst), of.replicas.select(0, kWorst));
    sums.add_(of.replicas);
    sums.select(0, kWorst).copy_(worst);
  }
}

at::Tensor StageLoads::last_step() const {
  return pending_.defined() ? pending_.select(0, pending_steps_ - 1) : at::zeros({0, num_experts_ + 1}, at::kInt);
}

void StageLoads::reduce_counts() {
  const at::Tensor all = pending_.narrow(0, 0, pending_steps_).to(at::kDouble);
  const at::Tensor group = all.narrow(-1, 0, num_experts_).clone();
  comm::all_reduce(group, experts_.experts);
  // All ranks of the group now have equal counts. Ranks of one ep index hold the same experts and count as one.
  const at::Tensor by_rank =
      group.view({pending_steps_, all.size(1), experts_.ep, num_experts_ / experts_.ep}).sum(-1);
  const at::Tensor most = by_rank.amax(-1);
  comm::all_reduce(most, experts_.tp_dp_cp, comm::ReduceOp::max);
  comm::all_reduce(all, experts_.tp_dp_cp);
  const at::Tensor tokens = all.narrow(-1, 0, num_experts_), sum = tokens.sum(-1);
  const at::Tensor uneven = at::stack({largest_over_mean(tokens.amax(-1), sum, num_experts_),
                                       largest_over_mean(most, sum, experts_.tp_dp_cp.size() / experts_.etp)},
                                      -1);
  counts_ += all.sum(0);
  rank_counts_ += by_rank.sum(0);
  summed_ += uneven.sum(0);
  worst_ = at::maximum(worst_, uneven.amax(0));
  pending_steps_ = 0;
}

at::Tensor StageLoads::sums() {
  if (!pending_.defined()) return at::zeros({0, num_experts_ + kLoadNumbers}, at::kDouble);
  if (pending_steps_ > 0) reduce_counts();
  constexpr int64_t kWorst = moe::LoadMeter::kWorstAfter;
  const at::Tensor times = times_.to(counts_.device());
  const at::Tensor largest = at::cat({rank_counts_.amax(-1, true), times, replica_counts_.narrow(1, kWorst, 1)}, 1);
  comm::all_reduce(largest, experts_.tp_dp_cp, comm::ReduceOp::max);
  const at::Tensor replicas = replica_counts_.narrow(1, 0, kWorst).clone();
  comm::all_reduce(replicas, experts_.tp_dp_cp);
  return at::cat(
      {counts_, largest.narrow(1, 0, 3), summed_, worst_, replicas, largest.narrow(1, 4, 1), largest.narrow(1, 3, 1)},
      1);
}

void StageLoads::reset() {
  steps_ = pending_steps_ = 0;
  if (!pending_.defined()) return;
  for (const at::Tensor& of : {counts_, rank_counts_, times_, summed_, worst_, replica_counts_}) of.zero_();
}

}  // namespace metroplex::step
