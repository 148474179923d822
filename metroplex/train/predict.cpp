#include "train/predict.h"

#include <algorithm>

#include "config/validate.h"
#include "plan/rank_model.h"
#include "sim/flops.h"
#include "topology/rank_grid.h"

namespace metroplex::train {
namespace {

// Operations of a step, all microbatches of a data-parallel rank, over all its tensor-parallel ranks.
struct Operations {
  double layer = 0;                              // of one: forward and backward
  double core_attention = 0, first_product = 0;  // of `layer`
  double head = 0;
};

Operations operations(const plan::MemoryRequest& request, int64_t samples) {
  const config::Config& config = request.config;
  const auto of = [&](int64_t layers, int64_t vocab, bool tokens, bool mlp) {
    sim::ModelShape shape = sim::model_shape(config, vocab);
    shape.num_layers = layers;
    if (!mlp) shape.ffn_hidden_size = 0;
    sim::StepTokens counted{.batch_size = samples};
    if (!tokens) counted.num_tokens = 0;
    return sim::step_flops(shape, counted);
  };
  Operations out;
  out.layer = of(1, 0, true, true);
  out.core_attention = of(1, 0, false, true);
  out.first_product = (out.layer - of(1, 0, true, false)) * (config.model.gated_linear_unit ? 2.0 / 3 : 0.5);
  out.head = of(
      0,
      config::padded_vocab_size(request.vocab_size, config.model.make_vocab_size_divisible_by, config.parallel.tp()),
      true, true);
  return out;
}

int64_t layers_recomputed(const config::Memory& memory, int64_t layers) {
  return memory.recompute_method == config::RecomputeMethod::block ? std::min(layers, memory.recompute_num_layers)
                                                                   : layers;
}

}  // namespace

RankPrediction predict_rank(const plan::MemoryRequest& request) {
  const config::Config& config = request.config;
  const config::Parallel& parallel = config.parallel;
  const int64_t dp = config::data_parallel_size(parallel, request.world_size);
  const topology::RankGrid grid(request.world_size, parallel);
  const plan::RankModel model = plan::rank_model(config, grid.coordinates(request.rank).pp, request.vocab_size);

  RankPrediction out;
  out.memory = plan::predict_memory(request);
  for (const plan::RankParam& param : model.params) out.num_params += param.numel();

  const int64_t samples = request.num_microbatches > 0 ? request.num_microbatches * config.train.micro_batch_size
                                                       : config.train.global_batch_size / dp;
  const Operations one = operations(request, samples);
  const double share = 1.0 / static_cast<double>(parallel.tp() * parallel.cp());
  constexpr double kForward = 1.0 / 3;
  double again = 0;
  for (const plan::RankChunk& chunk : model.chunks) {
    const auto layers = static_cast<double>(chunk.layers.num_layers);
    out.model_flops += layers * one.layer + (chunk.layers.has_loss ? one.head : 0);
    if (config.memory.recomputes_all())
      again += kForward * one.layer * static_cast<double>(layers_recomputed(config.memory, chunk.layers.num_layers));
    if (config.memory.recomputes("core_attn")) again += kForward * layers * one.core_attention;
    if (config.memory.recomputes("mlp")) again += kForward * layers * one.first_product;
  }
  out.flops = share * (out.model_flops + again);
  out.model_flops *= share;
  return out;
}

}  // namespace metroplex::train
