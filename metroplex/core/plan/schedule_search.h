// Finds a short pipeline schedule for measured times and a memory limit.
#pragma once

#include <vector>

#include "plan/pipeline_table.h"
#include "plan/transfers.h"

namespace metroplex::plan {

struct SearchRequest {
  int num_stages = 1;  // pp
  int num_microbatches = 1;
  // Times of one microbatch on one rank, over all its chunks; scale: one factor per rank.
  ActionTimes times;
  // Per rank, the maximum number of live microbatches; two chunks of a V count half each.
  std::vector<int> live_limits;
  int num_chunks = 0;            // per rank: 1, or 2 in a V; 0: either
  bool splits_backward = false;  // only tables with weight actions
  int steps = 2000;              // of the local search; fewer for large tables
};

struct FoundSchedule {
  PipelineTable table;  // verified; has the name of the schedule from which the search started
  double length = 0;    // of the step
};

// Returns times.scale per model stage for a table of `chunks` chunks per rank, and the times of one chunk.
ActionTimes chunk_times(const ActionTimes& times, const StagePlacement& placement);

// Returns the shortest of the fixed schedules within the limits, of list schedules with several priorities, and of
// the orders that local search finds from the best of these. Deterministic. Throws base::Error("plan") if a limit is
// below one microbatch.
FoundSchedule search_schedule(const SearchRequest& request);

// The fixed schedules of plan/schedules/ that fit the request, each with its length, in the order of the registry.
std::vector<FoundSchedule> fixed_schedules(const SearchRequest& request);

}  // namespace metroplex::plan
