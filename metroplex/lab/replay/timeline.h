// Replays a pipeline table with given costs. Computes the time of every action, the idle time of each rank and its
// live activations. Sends do not occupy a rank: a tensor arrives `p2p` after its producer ends. A compute action
// starts when its rank is free and its inputs have arrived. With blocking_p2p a rank stays in every p2p call until
// both sides have entered it and `p2p` has passed, as in an executor without overlap.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::replay {

struct TimelineCosts {
  // Costs of one microbatch on one rank, over all its chunks, so tables with different chunk counts are comparable.
  double forward = 1;
  double backward = 2;  // total; if the table has weight actions, they take `weight` of it
  double weight = 1;
  double p2p = 0;  // per tensor and stage boundary
  bool blocking_p2p = false;
  std::vector<double> stage_scale = {};  // one factor per model stage (chunk * pp + rank); empty: all 1
};

struct TimedAction {
  plan::Action action;
  double start = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;
  double length = 0;                       // from the first start to the last end
  std::vector<double> busy;                // compute time of each rank
  std::vector<double> bubble_share;        // 1 - busy / length, per rank
  double total_bubble_share = 0;           // over all ranks
  std::vector<int> peak_live_activations;  // 0 for forward-only tables
};

// Computes the figures of a timeline from its actions.
void summarize(const plan::PipelineTable& table, Timeline& timeline);

// Throws base::Error("plan") if a cost is negative or the table deadlocks (see verify.h).
Timeline replay(const plan::PipelineTable& table, const TimelineCosts& costs);

// The textbook bubble for equal stages and free p2p: (p-1)/(m+p-1), with v chunks (p-1)/(v*m+p-1). Tables without
// weight actions have exactly this share for any microbatch group size. With weight actions, and equal times of
// forward, backward, and weight actions: (p-1)/(3*v*m+p-1), for at least 2 p microbatches.
double formula_bubble_share(int num_stages, int num_chunks, int num_microbatches, bool splits_backward);

}  // namespace metroplex::replay
