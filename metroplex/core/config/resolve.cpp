#include "config/validate.h"

#include <algorithm>

#include "config/derived.h"
#include "config/experts.h"
#include "config/rules.h"

namespace metroplex::config {

static void fill(int64_t& value, int64_t derived) {
  if (value == 0) value = derived;
}

static void fill_model(Config& c) {
  Model& m = c.model;
  m.ffn_hidden_size = ffn_width(m);
  if (!m.multi_latent_attention) fill(m.kv_channels, m.hidden_size / m.num_attention_heads);
  fill(m.num_query_groups, m.num_attention_heads);
  fill(m.max_position_embeddings, c.train.seq_length);
  if (m.add_bias_linear && !m.multi_latent_attention) m.add_qkv_bias = true;
  if (m.has_experts()) m.moe_ffn_hidden_size = expert_ffn_width(m);
}

static void fill_parallel(Parallel& p, int64_t dp) {
  p.virtual_pipeline_model_parallel_size = virtual_stages(p);
  p.pipeline_schedule = schedule(p);
  fill(p.expert_tensor_parallel_size, p.tp());
  fill(p.microbatch_group_size_per_vp_stage, p.pp());
  fill(p.ddp_bucket_size, default_bucket_size(dp));
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

// A dynamic loss scaler relies on non-finite gradients, so the NaN checks are switched off.
static void fill_formats(Config& c) {
  Precision& p = c.precision;
  if (p.main_grads_dtype == MainGradsDtype::automatic)
    p.main_grads_dtype = p.params_dtype == ParamsDtype::fp64 ? MainGradsDtype::params : MainGradsDtype::fp32;
  if (p.scales_dynamically()) p.check_for_nan_in_grad = c.train.check_for_nan_in_loss = false;
}

Config resolved(const Config& config, int64_t world_size) {
  Config c = config;
  const int64_t dp = data_parallel_size(c.parallel, world_size);
  fill_parallel(c.parallel, dp);
  fill_model(c);
  fill_schedule(c);
  fill_formats(c);
  const bool selective = c.memory.recompute_granularity == Recompute::selective;
  if (selective && c.memory.recompute_modules.empty()) c.memory.recompute_modules = {"core_attn"};
  if (c.train.step_batch_size_schedule.empty()) fill(c.train.global_batch_size, c.train.micro_batch_size * dp);
  return c;
}

Config in_double_precision(const Config& config) {
  Config c = config;
  const Optim optim;
  c.precision.params_dtype = ParamsDtype::fp64;
  c.precision.fp32_residual_connection = false;
  c.precision.main_grads_dtype = MainGradsDtype::automatic;
  c.precision.loss_scale = 0;
  c.precision.check_for_nan_in_grad = c.train.check_for_nan_in_loss = true;
  c.optim.main_params_dtype = optim.main_params_dtype;
  c.optim.exp_avg_dtype = optim.exp_avg_dtype;
  c.optim.exp_avg_sq_dtype = optim.exp_avg_sq_dtype;
  c.optim.store_param_remainders = false;
  return c;
}

std::vector<int64_t> batch_sizes(const Config& config, int64_t world_size) {
  const Train& t = config.train;
  if (t.step_batch_size_schedule.empty() && t.rampup_batch_size.empty()) {
    const int64_t derived = t.micro_batch_size * data_parallel_size(config.parallel, world_size);
    return {t.global_batch_size == 0 ? derived : t.global_batch_size};
  }
  std::string problem;
  const auto sizes = scheduled_batch_sizes(t, problem);
  MPX_ASSERT(sizes.has_value(), problem);
  return *sizes;
}

}  // namespace metroplex::config
