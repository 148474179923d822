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
inline config::Config mixture(const MixtureSizes& s, int64_t ranks) {
  config::Config c;
  c.model.num_layers = s.layers;
  c.model.hidden_size = s.hidden;
  c.model.num_attention_heads = s.heads;
  c.model.ffn_hidden_size = s.ffn;
  c.model.vocab_size = s.vocab;
  c.model.max_position_embeddings = s.seq;
  c.model.normalization = "RMSNorm";
  c.model.activation = "silu";
  c.model.gated_linear_unit = true;
  c.model.add_bias_linear = false;
  c.model.num_moe_experts = s.experts;
  c.model.moe_router_topk = s.topk;
  c.parallel.expert_model_parallel_size = ranks;
  c.train.seq_length = s.seq;
  c.train.micro_batch_size = s.batch;
  c.train.global_batch_size = s.batch * ranks;
  c.train.train_iters = 1000;
  c.optim.lr = 1e-4;
  c.optim.lr_decay_style = "constant";
  c.optim.clip_grad = 0;
  c.data.mock_data = true;
  return c;
}

inline nn::Microbatch random_batch(const MixtureSizes& s, int64_t rank) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, s.vocab, {s.batch, s.seq}, at::kLong);
  batch.labels = at::randint(0, s.vocab, {s.batch, s.seq}, at::kLong);
  batch.position_ids = at::arange(s.seq, at::kLong).expand({s.batch, s.seq}).contiguous();
  batch.loss_mask = at::ones({s.batch, s.seq});
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.sample_counters = nn::counters_of_samples(0, at::arange(s.batch, at::kLong) + rank * s.batch);
  return batch;
}

}  // namespace metroplex::bench
