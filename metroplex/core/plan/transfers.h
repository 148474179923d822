// Adds sends, receives and frees to a schedule that lists only compute actions.
#pragma once

#include <optional>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

// Times of the compute actions of one microbatch, in any unit. `weight` counts only in tables with weight actions.
struct ActionTimes {
  double forward = 1, backward = 1, weight = 1;
  double p2p = 0;                  // from the end of a producer to the arrival at another rank
  std::vector<double> scale = {};  // one factor per model stage; empty: all 1

  double of(ActionKind kind, int stage) const;
  bool operator==(const ActionTimes&) const = default;
};

struct TimedCompute {
  Action action;
  double start = 0, end = 0;
};
// Runs the compute actions of every rank in their order, each as early as its inputs allow. Throws
// base::Error("plan") if the order deadlocks. The table may also contain transfers, which are ignored.
std::vector<std::vector<TimedCompute>> simulate(const PipelineTable& table, const ActionTimes& times);
// Returns the end of the last action. try_length() returns nullopt for an order that deadlocks.
double step_length(const PipelineTable& table, const ActionTimes& times);
std::optional<double> try_length(const PipelineTable& table, const ActionTimes& times);

// Returns `table`, which has only compute actions, with its transfers. A send follows its producer. A receive is
// posted after the last action that the receiver starts before the tensor is sent. So every rank issues its transfers
// in the order of their times, which cannot deadlock, and no action waits for a tensor that it does not need.
// Transfers are calls of their own: a batch would end with its last tensor. Outputs are freed after they are sent.
PipelineTable add_transfers(const PipelineTable& table, const ActionTimes& times);

}  // namespace metroplex::plan
