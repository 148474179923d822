// The loop: batch sizes, how long, what is printed and when.
#pragma once

#include <cstdint>
#include <string>

namespace metroplex::config {

struct Train {
  int64_t seq_length = 128;
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 0;         // 0: micro_batch_size * dp
  std::string step_batch_size_schedule;  // "0:768 250B:1536", see plan/microbatches.h
  std::string rampup_batch_size;         // "start increment samples"
  bool decrease_batch_size_if_needed = false;
  int64_t train_iters = 0;  // exactly one of train_iters and train_samples
  int64_t train_samples = 0;
  int64_t eval_interval = 0;  // 0: no evaluation while training
  int64_t eval_iters = 100;
  int64_t log_interval = 100;
  int64_t exit_interval = 0;
  double exit_duration_in_mins = 0;
  bool calculate_per_token_loss = false;
  double label_smoothing = 0.0;
  bool check_for_nan_in_loss = true;
  bool log_num_zeros_in_grad = false;
  bool log_params_norm = false;
  std::string tensorboard_dir;
  int64_t tensorboard_log_interval = 1;
  std::string metrics_file;      // JSON lines; empty: none
  int64_t timing_log_level = 0;  // 0 | 1 | 2
  bool progress = true;          // progress bar on a terminal
};

}  // namespace metroplex::config
