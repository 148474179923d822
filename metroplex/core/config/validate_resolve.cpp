#include "config/validate.h"

#include <algorithm>

#include "config/derived.h"
#include "config/experts.h"
#include "config/layer_parts.h"
#include "config/rules.h"

namespace metroplex::config {

static void fill(int64_t& value, int64_t derived) {
  if (value == 0) value = derived;
}

static void fill_model(Config& config) {
  Model& m = config.model;
  m.ffn_hidden_size = ffn_width(m);
  if (!m.multi_latent_attention) fill(m.kv_channels, m.hidden_size / m.num_attention_heads);
  fill(m.num_query_groups, m.num_attention_heads);
  if (any_layer_has(m, &LayerParts::mamba)) m.mamba_num_heads = mamba_heads(m);
  fill(m.max_position_embeddings, config.train.seq_length);
  if (m.add_bias_linear && !m.multi_latent_attention) m.add_qkv_bias = true;
  if (m.has_experts()) m.moe_ffn_hidden_size = expert_ffn_width(m);
}

static void fill_parallel(Parallel& parallel, int64_t dp) {
  parallel.virtual_pipeline_model_parallel_size = virtual_stages(parallel);
  parallel.pipeline_schedule = schedule(parallel);
  fill(parallel.expert_tensor_parallel_size, parallel.tp());
  fill(parallel.microbatch_group_size_per_vp_stage, parallel.pp());
  fill(parallel.ddp_bucket_size, default_bucket_size(dp));
  if (parallel.tp() == 1) parallel.sequence_parallel = false;
}

static void fill_schedule(Config& config) {
  Optim& optim = config.optim;
  if (config.train.train_samples > 0) {
    fill(optim.lr_decay_samples, config.train.train_samples);
  } else {
    fill(optim.lr_decay_iters, config.train.train_iters);
  }
  if (optim.start_weight_decay < 0) optim.start_weight_decay = optim.weight_decay;
  if (optim.end_weight_decay < 0) optim.end_weight_decay = optim.weight_decay;
}

// A dynamic loss scaler relies on non-finite gradients, so the NaN checks are switched off.
static void fill_formats(Config& config) {
  Precision& precision = config.precision;
  if (precision.main_grads_dtype == MainGradsDtype::automatic)
    precision.main_grads_dtype =
        precision.params_dtype == ParamsDtype::fp64 ? MainGradsDtype::params : MainGradsDtype::fp32;
  if (precision.scales_dynamically()) precision.check_for_nan_in_grad = config.train.check_for_nan_in_loss = false;
}

Config resolved(const Config& config, int64_t world_size) {
  Config settings = config;
  const int64_t dp = data_parallel_size(settings.parallel, world_size);
  fill_parallel(settings.parallel, dp);
  fill_model(settings);
  fill_schedule(settings);
  fill_formats(settings);
  const bool selective = settings.memory.recompute_granularity == Recompute::selective;
  if (selective && settings.memory.recompute_modules.empty()) settings.memory.recompute_modules = {"core_attn"};
  if (settings.train.step_batch_size_schedule.empty())
    fill(settings.train.global_batch_size, settings.train.micro_batch_size * dp);
  return settings;
}

Config in_double_precision(const Config& config) {
  Config settings = config;
  const Optim optim;
  settings.precision.params_dtype = ParamsDtype::fp64;
  settings.precision.fp32_residual_connection = false;
  settings.precision.output_logit_dtype = OutputLogitDtype::params;
  settings.precision.fp8_products = Fp8Products::widened;  // the library has no version for fp64
  settings.precision.main_grads_dtype = MainGradsDtype::automatic;
  settings.parallel.reduce_scatter_with_fp32_accumulation = false;
  settings.precision.loss_scale = 0;
  settings.precision.check_for_nan_in_grad = settings.train.check_for_nan_in_loss = true;
  settings.optim.main_params_dtype = optim.main_params_dtype;
  settings.optim.exp_avg_dtype = optim.exp_avg_dtype;
  settings.optim.exp_avg_sq_dtype = optim.exp_avg_sq_dtype;
  settings.optim.store_param_remainders = false;
  return settings;
}

std::vector<int64_t> batch_sizes(const Config& config, int64_t world_size) {
  const Train& train = config.train;
  if (train.step_batch_size_schedule.empty() && train.rampup_batch_size.empty()) {
    const int64_t derived = train.micro_batch_size * data_parallel_size(config.parallel, world_size);
    return {train.global_batch_size == 0 ? derived : train.global_batch_size};
  }
  std::string problem;
  const auto sizes = scheduled_batch_sizes(train, problem);
  MPX_ASSERT(sizes.has_value(), problem);
  return *sizes;
}

}  // namespace metroplex::config
