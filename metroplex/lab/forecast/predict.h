// Predicts memory, parameters and FLOPs of one rank from the configuration, before anything is allocated. fit.h
// calls it for many configurations and ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/parallel.h"
#include "replay/memory.h"
#include "forecast/trace.h"

namespace metroplex::forecast {

// Communication and attention FLOPs of one layer and one microbatch on a context-parallel rank.
struct ContextExchange {
  int64_t layer = 0;
  config::CpCommType exchange = config::CpCommType::p2p;
  // Bytes sent to other ranks. With documents this is an upper bound, since the visible keys depend on the data.
  int64_t forward_bytes = 0, backward_bytes = 0;
  double forward_flops = 0, backward_flops = 0;  // of the attention kernel
};

struct RankPrediction {
  replay::MemoryPrediction memory;
  int64_t num_params = 0;  // elements in this rank's shard of the model (tp and pp); a shared parameter once
  // FLOPs of this rank in one step, two per multiply-add, as its layers execute them. Includes forward, backward with
  // recomputation, and the matrix products of the update.
  double flops = 0;
  double forward_flops = 0;                // included in `flops`: forward passes
  double model_flops = 0;                  // by the formula of plan/model_flops.h; basis of the reported throughput
  double stored_bytes = 0;                 // for the backward pass of a microbatch, between actions
  std::vector<ContextExchange> exchanges;  // attention layers of this rank; empty without context parallelism
};

RankPrediction predict_rank(const RankRequest& request);
// The same from a trace of the rank, or of another stage with equal layers.
RankPrediction predict_traced(const RankRequest& request, const replay::RankTrace& trace);
replay::MemoryPrediction predict_memory(const RankRequest& request);

// Predicts the memory of partial graphs: for training, and for evaluation if it is captured.
replay::GraphMemory predict_graphs(const RankRequest& request, const replay::RankTrace& trace,
                                   const plan::PipelineTable& table);

// The peak of a step above the memory held at its start. Equals the memory pool size of a whole-step graph.
int64_t step_bytes(const replay::MemoryPrediction& prediction);

// Prediction of a rank; predict_rank, or a substitute in tests.
using Predictor = std::function<RankPrediction(const RankRequest&)>;

}  // namespace metroplex::forecast
