// The load of the experts of a stage's layers per step. The most loaded expert of a step is known only after the
// counts of all ranks have been added, so a rank keeps its counts of each step, and the ranks reduce many steps in
// one collective. All of it stays on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "moe/context.h"

namespace metroplex::train {

// What stands in a row of StageLoads::sums() behind the tokens of the E experts. Over the steps together: dropped
// assignments, tokens of the most loaded rank, milliseconds of the slowest. Of the largest over mean of each step,
// of experts and of the ranks that hold them: the sum over the steps, and the largest.
enum LoadNumber {
  kDropped,
  kMostOfRanks,
  kDispatchMs,
  kCombineMs,
  kExpertsSum,
  kRanksSum,
  kExpertsWorst,
  kRanksWorst,
  // Of clones, over the plans of all groups of ranks that share experts: moe::LoadMeter::CloneNumber; milliseconds
  // of the slowest rank's waiting for them. Zeros without clones.
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
  // Requires experts.meter. steps: how many there are at most between two resets.
  StageLoads(const moe::ExpertContext& experts, int64_t num_experts, int64_t steps,
             int64_t most_counts = int64_t{1} << 20);
  // Takes what the meter has counted in the step that is over. Nothing is sent, but where most_counts are
  // kept already: then it is collective over the ranks of the stage.
  void keep_step();
  int64_t steps() const { return steps_; }  // since the last reset
  // [layers, E + 1] int32, of this rank: tokens by expert, dropped assignments.
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
  at::Tensor kept_;            // [steps, layers, E + 1] int32, of this rank, not added up yet; undefined: no layers
  at::Tensor counts_;          // [layers, E + 1], over the ranks of the stage
  at::Tensor of_ranks_;        // [layers, ep]: tokens of the experts of each rank of the own group
  at::Tensor times_;           // [layers, 3], on the host
  at::Tensor clones_;          // [layers, moe::LoadMeter::kCloneNumbers], of this rank
  at::Tensor summed_, worst_;  // [layers, 2] of experts and ranks: the largest over mean of the steps
};

}  // namespace metroplex::train
