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

bool counts_experts(const config::Config& config) {
  return config.model.has_experts() &&
         (config.train.log_experts_interval > 0 || !config.train.expert_trace_file.empty());
}

StageLoads::StageLoads(const moe::ExpertContext& experts, int64_t num_experts, int64_t steps, int64_t most_counts)
    : experts_(experts), num_experts_(num_experts), most_steps_(steps), most_counts_(most_counts) {}

void StageLoads::make(int64_t layers) {
  const auto options = at::TensorOptions().device(experts_.meter->layers().begin()->second.counts.device());
  const int64_t rows = std::min(most_steps_, std::max<int64_t>(1, most_counts_ / (layers * num_experts_)));
  kept_ = at::zeros({rows, layers, num_experts_ + 1}, options.dtype(at::kInt));
  counts_ = at::zeros({layers, num_experts_ + 1}, options.dtype(at::kDouble));
  of_ranks_ = at::zeros({layers, experts_.ep}, counts_.options());
  summed_ = at::zeros({layers, 2}, counts_.options());
  worst_ = at::zeros({layers, 2}, counts_.options());
  times_ = at::zeros({layers, 3}, at::kDouble);
  clones_ = at::zeros({layers, moe::LoadMeter::kCloneNumbers}, counts_.options());
}

void StageLoads::keep_step() {
  const auto& layers = experts_.meter->layers();
  ++steps_;
  if (layers.empty()) return;
  if (!kept_.defined()) make(static_cast<int64_t>(layers.size()));
  if (kept_steps_ == kept_.size(0)) add_up();
  std::vector<at::Tensor> counts;
  auto* times = times_.mutable_data_ptr<double>();
  for (const auto& [number, of] : layers) {
    counts.push_back(of.counts);
    *times++ += of.dispatch_ms;
    *times++ += of.combine_ms;
    *times++ += of.clones_ms;
  }
  keep_clones();
  kept_.select(0, kept_steps_++).copy_(at::stack(counts));
  experts_.meter->reset_times();
}

void StageLoads::keep_clones() {
  constexpr int64_t kWorst = moe::LoadMeter::kWorstAfter;
  int64_t row = 0;
  for (const auto& [number, of] : experts_.meter->layers()) {
    const at::Tensor sums = clones_.select(0, row++);
    if (!of.clones.defined()) continue;
    const at::Tensor worst = at::maximum(sums.select(0, kWorst), of.clones.select(0, kWorst));
    sums.add_(of.clones);
    sums.select(0, kWorst).copy_(worst);
  }
}

at::Tensor StageLoads::last_step() const {
  return kept_.defined() ? kept_.select(0, kept_steps_ - 1) : at::zeros({0, num_experts_ + 1}, at::kInt);
}

void StageLoads::add_up() {
  const at::Tensor all = kept_.narrow(0, 0, kept_steps_).to(at::kDouble);
  const at::Tensor group = all.narrow(-1, 0, num_experts_).clone();
  comm::all_reduce(group, experts_.experts);
  // All ranks of the group now have equal counts. Ranks of one ep index hold the same experts and count as one.
  const at::Tensor by_rank = group.view({kept_steps_, all.size(1), experts_.ep, num_experts_ / experts_.ep}).sum(-1);
  const at::Tensor most = by_rank.amax(-1);
  comm::all_reduce(most, experts_.tp_dp_cp, comm::ReduceOp::max);
  comm::all_reduce(all, experts_.tp_dp_cp);
  const at::Tensor tokens = all.narrow(-1, 0, num_experts_), sum = tokens.sum(-1);
  const at::Tensor uneven = at::stack({largest_over_mean(tokens.amax(-1), sum, num_experts_),
                                       largest_over_mean(most, sum, experts_.tp_dp_cp.size() / experts_.etp)},
                                      -1);
  counts_ += all.sum(0);
  of_ranks_ += by_rank.sum(0);
  summed_ += uneven.sum(0);
  worst_ = at::maximum(worst_, uneven.amax(0));
  kept_steps_ = 0;
}

at::Tensor StageLoads::sums() {
  if (!kept_.defined()) return at::zeros({0, num_experts_ + kLoadNumbers}, at::kDouble);
  if (kept_steps_ > 0) add_up();
  constexpr int64_t kWorst = moe::LoadMeter::kWorstAfter;
  const at::Tensor times = times_.to(counts_.device());
  const at::Tensor largest = at::cat({of_ranks_.amax(-1, true), times, clones_.narrow(1, kWorst, 1)}, 1);
  comm::all_reduce(largest, experts_.tp_dp_cp, comm::ReduceOp::max);
  const at::Tensor clones = clones_.narrow(1, 0, kWorst).clone();
  comm::all_reduce(clones, experts_.tp_dp_cp);
  return at::cat(
      {counts_, largest.narrow(1, 0, 3), summed_, worst_, clones, largest.narrow(1, 4, 1), largest.narrow(1, 3, 1)},
      1);
}

void StageLoads::reset() {
  steps_ = kept_steps_ = 0;
  if (!kept_.defined()) return;
  for (const at::Tensor& of : {counts_, of_ranks_, times_, summed_, worst_, clones_}) of.zero_();
}

}  // namespace metroplex::step
