// Optimizer, learning-rate and weight-decay schedules. Lengths are in iterations or in samples, never both.
#pragma once

#include <cstdint>
#include <string>

namespace metroplex::config {

struct Optim {
  std::string optimizer = "adam";  // adam (AdamW) | sgd
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
  double clip_grad = 1.0;  // 0: off
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
};

}  // namespace metroplex::config
