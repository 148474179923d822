// Builds a schedule by list scheduling: whenever a rank is free, it starts the most urgent action that is ready.
#pragma once

#include <optional>
#include <vector>

#include "plan/pipeline_table.h"
#include "plan/transfers.h"

namespace metroplex::plan {

struct GreedyRules {
  // Per rank, the maximum number of live (microbatch, chunk) forwards: those whose last backward or weight action has
  // not run.
  std::vector<int> live_limits;
  bool forward_before_weight = true;  // a forward is more urgent than a weight action
  // A weight action does not start if a tensor for a forward or backward arrives before this share of it has run.
  double patience = 0;
  // A forward waits until its microbatch can also run in the rank's later chunks. Limits below the number of ranks
  // require it.
  bool reserves_room = false;
};

// `shape` has no actions. Returns it with the compute actions of every rank; nullopt if the limits allow none.
std::optional<PipelineTable> greedy_order(const PipelineTable& shape, const ActionTimes& times,
                                          const GreedyRules& rules);

// Returns the order of an evaluation: forwards as early as possible.
PipelineTable forward_order(const PipelineTable& shape);

// Returns the shortest of the orders with the limits of `rules` and any priority and patience.
std::optional<PipelineTable> shortest_greedy_order(const PipelineTable& shape, const ActionTimes& times,
                                                   GreedyRules rules);

}  // namespace metroplex::plan
