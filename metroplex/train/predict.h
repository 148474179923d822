// What a configuration predicts of one rank before anything is made: its memory, its parameters, its operations.
// Whoever asks for many configurations or ranks asks here (fit.h, memory_options.h, dry_run.h).
#pragma once

#include <cstdint>
#include <functional>

#include "plan/memory.h"
#include "train/trace.h"

namespace metroplex::train {

struct RankPrediction {
  plan::MemoryPrediction memory;
  int64_t num_params = 0;  // elements in this rank's share of the model (its tp and pp slice), a shared one once
  // Of this rank in one step, two a multiply-add, as its layers do them: forward, backward with what is recomputed,
  // and what the update multiplies.
  double flops = 0;
  double forward_flops = 0;  // of these, in forwards
  double model_flops = 0;    // by the formula of sim/flops.h, which throughput is counted with
};

RankPrediction predict_rank(const RankRequest& request);
plan::MemoryPrediction predict_memory(const RankRequest& request);

// What a step holds at most beside what is there when it begins: what the pool of its graph holds.
int64_t step_bytes(const plan::MemoryPrediction& prediction);

using Predictor = std::function<RankPrediction(const RankRequest&)>;

}  // namespace metroplex::train
