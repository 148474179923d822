// Derived values, written out.
#include <algorithm>

#include "config/rules.h"
#include "config/transformer_rules.h"
#include "config/validate.h"

namespace metroplex::config {

static void fill(int64_t& value, int64_t derived) {
  if (value == 0) value = derived;
}

static void fill_model(Config& c) {
  Model& m = c.model;
  m.ffn_hidden_size = effective_ffn(m);
  const TransformerSettings s = transformer_resolved(transformer_settings(c));
  fill(m.kv_channels, *s.kv_channels);
  fill(m.num_query_groups, *s.num_query_groups);
  fill(m.max_position_embeddings, c.train.seq_length);
  if (m.add_bias_linear) m.add_qkv_bias = true;
}

static void fill_parallel(Parallel& p, int64_t dp) {
  p.virtual_pipeline_model_parallel_size = effective_vpp(p);
  p.pipeline_schedule = effective_schedule(p);
  fill(p.expert_tensor_parallel_size, p.tp());
  fill(p.microbatch_group_size_per_vp_stage, p.pp());
  fill(p.ddp_bucket_size, std::max<int64_t>(40000000, 1000000 * dp));
  if (p.tp() == 1) p.sequence_parallel = false;
}

static void fill_schedule(Config& c) {
  Optim& o = c.optim;
  if (c.train.train_samples > 0) {
    fill(o.lr_decay_samples, c.train.train_samples);
  } else {
    fill(o.lr_decay_iters, c.train.train_iters);
  }
  if (o.start_weight_decay < 0) o.start_weight_decay = o.weight_decay;
  if (o.end_weight_decay < 0) o.end_weight_decay = o.weight_decay;
}

Config resolved(const Config& config, int64_t world_size) {
  Config c = config;
  const int64_t dp = data_parallel_size(c.parallel, world_size);
  fill_parallel(c.parallel, dp);
  fill_model(c);
  fill_schedule(c);
  if (c.train.step_batch_size_schedule.empty()) fill(c.train.global_batch_size, c.train.micro_batch_size * dp);
  return c;
}

std::vector<int64_t> batch_sizes(const Config& config, int64_t world_size) {
  const Train& t = config.train;
  std::string problem;
  std::optional<std::vector<int64_t>> sizes;
  if (!t.step_batch_size_schedule.empty()) {
    sizes = step_batch_sizes(t.step_batch_size_schedule, problem);
  } else if (!t.rampup_batch_size.empty()) {
    sizes = rampup_batch_sizes(t.rampup_batch_size, t.global_batch_size, problem);
  } else {
    const int64_t derived = t.micro_batch_size * data_parallel_size(config.parallel, world_size);
    sizes = {{t.global_batch_size == 0 ? derived : t.global_batch_size}};
  }
  MPX_ASSERT(sizes.has_value(), problem);
  return *sizes;
}

}  // namespace metroplex::config
