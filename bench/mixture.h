// The small MoE model that benchmarks train on synthetic tokens, and a microbatch of it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "config/config.h"
#include "nn/microbatch.h"

namespace metroplex::bench {

struct MixtureSizes {
  int64_t layers = 4, hidden = 512, heads = 8, ffn = 1024, experts = 8, topk = 2, vocab = 8192, seq = 256, batch = 4;
};

// Returns the config for `ranks` ranks that share the experts; neither checked nor resolved.
inline config::Config mixture(const MixtureSizes& sizes, int64_t ranks) {
  config::Config config;
  config.model.num_layers = sizes.layers;
  config.model.hidden_size = sizes.hidden;
  config.model.num_attention_heads = sizes.heads;
  config.model.ffn_hidden_size = sizes.ffn;
  config.model.vocab_size = sizes.vocab;
  config.model.max_position_embeddings = sizes.seq;
  config.model.normalization = "RMSNorm";
  config.model.activation = "silu";
  config.model.gated_linear_unit = true;
  config.model.add_bias_linear = false;
  config.model.num_moe_experts = sizes.experts;
  config.model.moe_router_topk = sizes.topk;
  config.parallel.expert_model_parallel_size = ranks;
  config.train.seq_length = sizes.seq;
  config.train.micro_batch_size = sizes.batch;
  config.train.global_batch_size = sizes.batch * ranks;
  config.train.train_iters = 1000;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.optim.clip_grad = 0;
  config.data.mock_data = true;
  return config;
}

inline nn::Microbatch random_batch(const MixtureSizes& sizes, int64_t rank) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, sizes.vocab, {sizes.batch, sizes.seq}, at::kLong);
  batch.labels = at::randint(0, sizes.vocab, {sizes.batch, sizes.seq}, at::kLong);
  batch.position_ids = at::arange(sizes.seq, at::kLong).expand({sizes.batch, sizes.seq}).contiguous();
  batch.loss_mask = at::ones({sizes.batch, sizes.seq});
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.counters.samples = nn::make_sample_counters(0, at::arange(sizes.batch, at::kLong) + rank * sizes.batch);
  return batch;
}

}  // namespace metroplex::bench
