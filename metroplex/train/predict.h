// Predicts the memory, parameters and FLOPs of one rank from the configuration, before anything is allocated.
// preflight/ calls it for many configurations and ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/parallel.h"
#include "plan/memory.h"
#include "train/trace.h"

namespace metroplex::train {

// Of the attention of one layer and one microbatch on a context-parallel rank.
struct ContextExchange {
  int64_t layer = 0;
  config::CpCommType exchange = config::CpCommType::p2p;
  // Bytes sent to other ranks. With documents at most so many: which keys are seen is known when they are read.
  int64_t forward_bytes = 0, backward_bytes = 0;
  double forward_flops = 0, backward_flops = 0;  // of the attention itself
};

struct RankPrediction {
  plan::MemoryPrediction memory;
  int64_t num_params = 0;  // elements in this rank's share of the model (its tp and pp slice), a shared one once
  // Of this rank in one step, two a multiply-add, as its layers do them: forward, backward with what is recomputed,
  // and what the update multiplies.
  double flops = 0;
  double forward_flops = 0;                // of these, in forwards
  double model_flops = 0;                  // by the formula of plan/model_flops.h, which throughput is counted with
  std::vector<ContextExchange> exchanges;  // of this rank's layers with attention; none without context parallelism
};

RankPrediction predict_rank(const RankRequest& request);
plan::MemoryPrediction predict_memory(const RankRequest& request);

// Predicts the memory of the graphs of parts of layers: of training, and of evaluation if it is captured.
plan::GraphMemory predict_graphs(const RankRequest& request, const plan::RankTrace& trace,
                                 const plan::PipelineTable& table);

// The peak of a step above what is held when it begins: the size of the memory pool of its graph.
int64_t step_bytes(const plan::MemoryPrediction& prediction);

using Predictor = std::function<RankPrediction(const RankRequest&)>;

}  // namespace metroplex::train
