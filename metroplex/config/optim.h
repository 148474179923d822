// Optimizer, learning-rate and weight-decay schedules. Lengths are in iterations or in samples, never both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::config {

struct Optim {
  std::string optimizer = "adam";  // a row of config/optimizers.h
  double lr = 3e-4;
  double min_lr = 0.0;
  std::string lr_decay_style = "linear";  // constant | linear | cosine | inverse-square-root | WSD
  int64_t lr_decay_iters = 0;             // 0: train.train_iters
  int64_t lr_decay_samples = 0;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  double lr_warmup_fraction = 0.0;  // of the decay length; excludes the two above
  double lr_warmup_init = 0.0;
  std::string lr_wsd_decay_style = "exponential";  // linear | cosine | exponential | minus_sqrt
  int64_t lr_wsd_decay_iters = 0;
  int64_t lr_wsd_decay_samples = 0;
  double weight_decay = 0.01;
  double start_weight_decay = -1.0;  // -1: weight_decay; only with weight_decay_incr_style linear | cosine
  double end_weight_decay = -1.0;
  std::string weight_decay_incr_style = "constant";
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.95;
  double lion_beta2 = 0.98;
  double muon_momentum = 0.95;
  int64_t muon_num_ns_steps = 5;
  bool muon_use_nesterov = false;
  std::string muon_scale_mode = "spectral";  // spectral | unit_rms_norm | shape_scaling
  double muon_extra_scale_factor = 1.0;
  bool apply_wd_to_qk_layernorm = false;
  double decoupled_lr = 0.0;  // of word embeddings and output layer; 0: lr
  double decoupled_min_lr = 0.0;
  std::vector<std::string> param_groups;  // "PATTERN lr_mult=X wd_mult=Y": the first whose pattern fits a name counts
  std::string main_params_dtype = "fp32";  // fp32 | bf16; of half-precision parameters
  std::string exp_avg_dtype = "fp32";      // fp32 | bf16 | 8bit
  std::string exp_avg_sq_dtype = "fp32";   // fp32 | bf16 | 8bit
  bool store_param_remainders = false;     // bf16 parameter + 16 bits = fp32 main parameter
  bool optimizer_cpu_offload = false;      // state and step on the host
  double clip_grad = 1.0;                  // 0: off
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
};

}  // namespace metroplex::config
