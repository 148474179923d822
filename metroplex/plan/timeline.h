// Replays a pipeline table with given times and says when every action happens, how long each rank idles and how
// many activations it holds. Sends do not occupy a rank: a tensor arrives p2p after its producer has ended, and a
// compute action starts when its rank is free and its inputs are there. With blocking_p2p a rank stays in every call
// of sends and receives until both sides have come and p2p has passed: what an executor without overlap loses.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

struct TimelineCosts {
  // Of one microbatch on one rank, all its chunks together: so tables with more chunks compare.
  double forward = 1;
  double backward = 2;  // whole: with weight actions in the table, `weight` of it is theirs
  double weight = 1;
  double p2p = 0;  // one tensor over one border
  bool blocking_p2p = false;
  std::vector<double> stage_scale = {};  // one factor a model stage (chunk * pp + rank); empty: all 1
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;  // in the order of the table
  double length = 0;                            // from the first start to the last end
  std::vector<double> busy;                     // compute time of each rank
  std::vector<double> bubble_share;             // 1 - busy / length of each rank
  double total_bubble_share = 0;                // of all ranks together
  std::vector<int> peak_live_activations;       // 0 for forward-only tables
};

// Throws base::Error("plan") when a cost is negative or the table cannot run to its end (see verify.h).
Timeline replay(const PipelineTable& table, const TimelineCosts& costs);

// The textbook bubble for equal stages and p2p at no cost: (p-1)/(m+p-1), with v chunks (p-1)/(v*m+p-1). The tables
// of all builders have exactly this share, whatever the microbatch group size.
double formula_bubble_share(const PipelineTable& table);

}  // namespace metroplex::plan
