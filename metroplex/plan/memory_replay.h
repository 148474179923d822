// Walks a rank's list of actions and adds up what it holds after each of them: activations from forward to backward,
// border tensors from where they are made or received until they are used or known to be sent, gradient buckets that
// exist only for a while (ZeRO-2 and 3), units that are gathered (ZeRO-3); and inside an action what its blocks
// make, step by step (plan/memory_work.h). The rules are the executor's and the
// buffers': what is held follows from the table alone, not from who was faster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/rank_model.h"
#include "plan/pipeline_table.h"
#include "plan/trace_replay.h"

namespace metroplex::plan {

// Parameters in one flat range, as distributed/flat_layout.h lays them.
struct FlatBuckets {
  struct Bucket {
    int64_t size = 0;  // elements, padding included
    std::vector<size_t> params;
  };
  std::vector<Bucket> buckets;
  std::vector<size_t> bucket_of;  // by parameter
  std::vector<int64_t> own;       // by parameter, elements in this rank's part
  int64_t numel = 0, own_numel = 0;
};

struct FlatRequest {
  config::Sharding sharding;
  int64_t bucket_size = 0;  // 0: one bucket
  int64_t parts = 1, index = 0;
};
FlatBuckets flat_buckets(const RankModel& model, const FlatRequest& request);

struct ReplayRequest {
  const RankModel* model = nullptr;
  const FlatBuckets* flat = nullptr;
  const config::Config* config = nullptr;  // resolved
  int pp_rank = 0;
  int64_t gradient_bytes = 4;  // of a gradient element
};

struct OldReplayPeaks {
  int64_t activations = 0, borders = 0;  // after the action after which their sum is largest
  int64_t gathered_elements = 0;         // ZeRO-3, at any time
  int64_t gradient_buckets = 0;          // ZeRO-2 and 3, at any time
  int64_t most = 0;                      // of all these and of what blocks make, together at any time
  std::vector<ReplayMoment> moments;     // in order
};
OldReplayPeaks replay_memory(const PipelineTable& table, const ReplayRequest& request);

}  // namespace metroplex::plan
