// What a step reports, and the places it goes: the iteration line (Megatron's format: scripts parse it), TensorBoard
// event files, JSON lines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "config/config.h"

namespace metroplex::train {

struct IterationMetrics {
  int64_t iteration = 0, train_iters = 0;
  int64_t consumed_samples = 0;
  double elapsed_ms_per_iteration = 0;
  double tflops_per_rank = 0;
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  double lm_loss = 0;  // mean over the log interval
  double loss_scale = 1.0;
  double grad_norm = 0;
  int64_t num_zeros = -1;   // -1: not computed
  double params_norm = -1;  // -1: not computed
  int64_t skipped_iterations = 0, nan_iterations = 0;
  double tokens_per_second = 0;
  double remaining_seconds = 0;
};

struct EvaluationMetrics {
  int64_t iteration = 0;
  std::string split;  // validation | test
  double lm_loss = 0;
  int64_t consumed_samples = 0;
};

// " [2026-11-21 05:06:07] iteration        5/     100 | consumed samples:          40 | ... |"
std::string iteration_line(const IterationMetrics& m);
// " validation loss at iteration 100 on validation set | lm loss value: 4.2E+00 | lm loss PPL: 6.6E+01 | ", PPL =
// exp(min(20, loss)).
std::string evaluation_line(const EvaluationMetrics& m);
// "1:02:03" or "0:59"
std::string format_duration(double seconds);

// The sinks of one process, made on the rank that reports. A sink that cannot be written (full disk) is reported once
// through the log and then left alone: metrics never end a run.
class Metrics {
 public:
  Metrics(const config::Train& config, base::Log& log);
  ~Metrics();
  void iteration(const IterationMetrics& m);
  void evaluation(const EvaluationMetrics& m);

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace metroplex::train
