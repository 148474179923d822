// A rank's share of a run, made from its configuration as in a real run and run once without values: the real layers,
// stages, buffers and optimizer on the meta device, under a meter. What they take and do becomes plain data, which
// plan/ replays over the pipeline's table. No layer is described anywhere else.
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
};

// Nothing is allocated, no other rank is needed, no GPU either. On a GPU blocks count in multiples of 512 bytes, as
// its allocator takes them.
plan::RankTrace trace_rank(const RankRequest& request);

}  // namespace metroplex::train
