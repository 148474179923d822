// Builds a rank's share of a run as a real run does, and runs it once on the meta device: the real layers, stages,
// buffers and optimizer, under a memory meter. Their allocations and operations become plain data, which plan/
// replays over the pipeline table. So no layer needs a second description for the memory prediction.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "plan/rank_trace.h"
#include "train/assemble.h"

namespace metroplex::train {

struct RankRequest {
  config::Config config;  // resolved and checked for world_size ranks
  int world_size = 1;
  int rank = 0;
  int64_t vocab_size = 0;        // unpadded
  int64_t num_microbatches = 0;  // of a step; 0: as train.global_batch_size says
  at::Device device = at::kCPU;  // that the run computes on; need not be there
  StageBuilder build = models::build_stage;
  bool eager = false;  // of steps before graphs of parts of layers are captured
};

// Nothing is allocated, no other rank is needed, no GPU either. On a GPU blocks count in multiples of 512 bytes, as
// its allocator takes them.
plan::RankTrace trace_rank(const RankRequest& request);

}  // namespace metroplex::train
