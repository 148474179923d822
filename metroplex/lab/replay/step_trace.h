// The operations of one training step of a rank as plain data, recorded from the real step on the meta device
// (forecast/trace_step.h). step_time.h replays them over a pipeline table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/pipeline_table.h"
#include "replay/rank_trace.h"

namespace metroplex::replay {

struct TracedGroup {
  std::string purpose;     // comm::Purpose
  std::vector<int> ranks;  // global
};

// Position of a microbatch in its step. Only the last one reduces gradients, unless gradients are sharded; the first
// one waits for gathered parameters.
enum class Position { first, middle, last };

struct TracedAction {
  plan::ActionKind kind;  // forward, backward, or weight
  int chunk = 0;
  Position position = Position::first;
  std::vector<IslandTrace> regions;
};

struct StepTrace {
  std::map<std::string, TracedGroup> groups;  // that have more than one rank
  std::vector<IslandTrace> after;             // the last action: gradients, norm, update, parameters
  std::vector<TracedAction> actions;
  std::vector<int64_t> border_bytes;  // between stages i and i + 1 of the model
  std::vector<TraceParam> params;     // as in RankTrace

  // A step with a single microbatch has only `first`, and with two no `middle`: the nearest position is returned.
  const TracedAction& find(plan::ActionKind kind, int chunk, Position position) const;
};

}  // namespace metroplex::replay
