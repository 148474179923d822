// Builds a rank's share of a run and executes it once on the meta device, under a memory meter. Uses the real layers,
// stages, buffers and optimizer. Their allocations and operations become plain data, which plan/ replays over the
// pipeline table. Memory prediction therefore needs no second description of the layers.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "replay/rank_trace.h"
#include "step/assemble.h"

namespace metroplex::forecast {

struct RankRequest {
  config::Config config;  // resolved and checked for world_size ranks
  int world_size = 1;
  int rank = 0;
  int64_t vocab_size = 0;        // without padding
  int64_t num_microbatches = 0;  // per step; 0: derived from train.global_batch_size
  at::Device device = at::kCPU;  // device of the run; need not exist
  step::StageBuilder build = models::build_stage;
  bool eager = false;                                     // trace a step before partial graphs are captured
  std::vector<distributed::FamilyKey> other_stages = {};  // parameter families of other pipeline stages
  int capability = 0;                                     // of the run's GPU, 90 for sm_90; 0: that of this process
};

// Allocates no tensor memory and needs neither other ranks nor a GPU. For a GPU, sizes are rounded up to 512 bytes,
// the block size of PyTorch's caching allocator. `passes` is the trace of a rank that has the same layers and
// microbatches, but other shards of the parameters: its passes are copied instead of run.
replay::RankTrace trace_rank(const RankRequest& request, const replay::RankTrace* passes = nullptr);

}  // namespace metroplex::forecast
