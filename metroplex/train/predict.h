// What a configuration predicts of one rank before anything is made: its memory, its parameters, its operations.
// Whoever asks for many configurations or ranks asks here (fit.h, ways_out.h, dry_run.h).
#pragma once

#include <cstdint>
#include <functional>

#include "plan/memory.h"

namespace metroplex::train {

struct RankPrediction {
  plan::MemoryPrediction memory;
  int64_t num_params = 0;  // elements in this rank's share of the model (its tp and pp slice), a shared one once
  double flops = 0;        // of this rank in one step: forward and backward, with what is recomputed
  double model_flops = 0;  // without what is recomputed
};

// `request` as plan::predict_memory has it.
RankPrediction predict_rank(const plan::MemoryRequest& request);

using Predictor = std::function<RankPrediction(const plan::MemoryRequest&)>;

}  // namespace metroplex::train
