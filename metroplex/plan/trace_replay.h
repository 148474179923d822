// Walks a rank's list of actions and adds up the memory after each of them and the maximum within: the traces of its
// chunks, border tensors as the executor holds them (plan/borders.h), and transient gradient buckets
// (plan/filling_buckets.h). All of it follows from the table alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/pipeline_table.h"
#include "plan/rank_trace.h"

namespace metroplex::plan {

// One run of an island inside an action.
struct ReplayMoment {
  size_t action = 0;  // index into the rank's list
  int block = 0;
  bool backward = false;
  int64_t most = 0;  // maximum, in bytes above those held before the action
};

// Bytes above what is held before the first action.
struct ReplayPeaks {
  int64_t activations = 0, borders = 0;  // after the action after which their sum is largest
  int64_t gathered = 0;                  // ZeRO-3, at any time
  int64_t gradient_buckets = 0;          // ZeRO-2 and 3, at any time
  int64_t most = 0;                      // of everything at any time, the update included
  std::vector<ReplayMoment> moments;     // in order
};

ReplayPeaks replay_trace(const RankTrace& trace, const PipelineTable& table, int pp_rank);

}  // namespace metroplex::plan
