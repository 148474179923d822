// Expert loads of a stage's layers per step. The most loaded expert of a step is defined only after counts of all
// ranks are summed. Each rank therefore stores its counts per step, and the ranks reduce many steps in one
// collective. All data stays on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/config.h"
#include "moe/context.h"

namespace metroplex::step {

// True if the run reports expert loads.
bool needs_expert_loads(const config::Config& config);

// Columns of StageLoads::sums() after the tokens of the E experts. Totals over the steps: dropped assignments, tokens
// of the most loaded rank, milliseconds of the slowest rank. For the max / mean per step, of experts and of ranks:
// the sum over the steps, and the largest.
enum LoadNumber {
  kDropped,
  kMaxRankTokens,
  kDispatchMs,
  kCombineMs,
  kExpertsSum,
  kRanksSum,
  kMaxExpertsRatio,
  kMaxRanksRatio,
  // Expert replicas, over the plans of all expert-parallel groups (moe::LoadMeter::ReplicaNumber). kReplicasMs:
  // waiting time of the slowest rank, in milliseconds. Zeros without replicas.
  kPlans,
  kReplicas,
  kBeforeReplicas,
  kAfterReplicas,
  kWorstAfterReplicas,
  kReplicasMs,
  kLoadNumbers
};

class StageLoads {
 public:
  // Requires experts.meter. steps: the maximum between two resets.
  StageLoads(const moe::ExpertContext& experts, int64_t num_experts, int64_t steps,
             int64_t max_counts = int64_t{1} << 20);
  // Stores the counts of the finished step. Communicates only if max_counts are already stored; it is then
  // collective over the ranks of the stage.
  void add_step();
  int64_t steps() const { return steps_; }  // since the last reset
  // [layers, E + 1] int32, of this rank: tokens per expert, dropped assignments.
  at::Tensor last_step() const;
  // [layers, E + kLoadNumbers] float64, over the steps since the last reset. Collective over the ranks of the stage.
  at::Tensor sums();
  void reset();

 private:
  void make(int64_t layers);
  void add_replica_counts();
  void reduce_counts();

  const moe::ExpertContext& experts_;
  int64_t num_experts_, max_steps_, max_counts_;
  int64_t steps_ = 0, pending_steps_ = 0;
  at::Tensor pending_;         // [steps, layers, E + 1] int32, of this rank, not yet reduced; undefined: no layers
  at::Tensor counts_;          // [layers, E + 1], over the ranks of the stage
  at::Tensor rank_counts_;     // [layers, ep]: tokens of each rank's experts in this rank's group
  at::Tensor times_;           // [layers, 3] ms, on the host
  at::Tensor replica_counts_;  // [layers, moe::LoadMeter::kReplicaNumbers], of this rank
  at::Tensor summed_, worst_;  // [layers, 2] for experts and ranks: max / mean per step
};

}  // namespace metroplex::step
