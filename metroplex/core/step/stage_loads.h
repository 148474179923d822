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
bool counts_experts(const config::Config& config);

// Columns of StageLoads::sums() after the tokens of the E experts. Totals over the steps: dropped assignments, tokens
// of the most loaded rank, milliseconds of the slowest rank. For the max / mean per step, of experts and of ranks:
// the sum over the steps, and the largest.
enum LoadNumber {
  kDropped,
  kMostOfRanks,
  kDispatchMs,
  kCombineMs,
  kExpertsSum,
  kRanksSum,
  kExpertsWorst,
  kRanksWorst,
  // Expert replicas, over the plans of all expert-parallel groups (moe::LoadMeter::CloneNumber). kClonesMs: waiting
  // time of the slowest rank, in milliseconds. Zeros without replicas.
  kPlans,
  kClones,
  kBeforeClones,
  kAfterClones,
  kWorstAfterClones,
  kClonesMs,
  kLoadNumbers
};

class StageLoads {
 public:
  // Requires experts.meter. steps: the maximum between two resets.
  StageLoads(const moe::ExpertContext& experts, int64_t num_experts, int64_t steps,
             int64_t most_counts = int64_t{1} << 20);
  // Stores the counts of the finished step. Communicates only if most_counts are already stored; it is then
  // collective over the ranks of the stage.
  void keep_step();
  int64_t steps() const { return steps_; }  // since the last reset
  // [layers, E + 1] int32, of this rank: tokens per expert, dropped assignments.
  at::Tensor last_step() const;
  // [layers, E + kLoadNumbers] float64, over the steps since the last reset. Collective over the ranks of the stage.
  at::Tensor sums();
  void reset();

 private:
  void make(int64_t layers);
  void keep_clones();
  void add_up();

  const moe::ExpertContext& experts_;
  int64_t num_experts_, most_steps_, most_counts_;
  int64_t steps_ = 0, kept_steps_ = 0;
  at::Tensor kept_;            // [steps, layers, E + 1] int32, of this rank, not yet reduced; undefined: no layers
  at::Tensor counts_;          // [layers, E + 1], over the ranks of the stage
  at::Tensor of_ranks_;        // [layers, ep]: tokens of each rank's experts in this rank's group
  at::Tensor times_;           // [layers, 3] ms, on the host
  at::Tensor clones_;          // [layers, moe::LoadMeter::kCloneNumbers], of this rank
  at::Tensor summed_, worst_;  // [layers, 2] for experts and ranks: max / mean per step
};

}  // namespace metroplex::step
