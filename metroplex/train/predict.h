// Predicts the memory, parameters and FLOPs of one rank from the configuration, before anything is allocated.
// preflight/ calls it for many configurations and ranks.
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
  double model_flops = 0;    // by the formula of plan/model_flops.h, which throughput is counted with
};

RankPrediction predict_rank(const RankRequest& request);
plan::MemoryPrediction predict_memory(const RankRequest& request);

// plan::MemoryUse::graphs, of what the run's graphs of parts of layers take beside the step: static inputs with their
// microbatches, and incoming gradients, of training and, where they are captured, of evaluation. To the byte, but for
// a factor of losses; what lies in pools counts as the step's.
int64_t predict_graphs(const RankRequest& request, const plan::RankTrace& trace, const plan::PipelineTable& table);

// The peak of a step above what is held when it begins: the size of the memory pool of its graph.
int64_t step_bytes(const plan::MemoryPrediction& prediction);

using Predictor = std::function<RankPrediction(const RankRequest&)>;

}  // namespace metroplex::train
