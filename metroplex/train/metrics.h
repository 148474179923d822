// What is reported, and where it goes: the iteration line every train.log_interval steps (Megatron's format: scripts
// parse it), a JSON line every step, TensorBoard event files every train.tensorboard_log_interval steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/config.h"
#include "files/expert_picture.h"
#include "files/file_system.h"

namespace metroplex::train {

// Means over the plans of clones of a layer, one for each microbatch and group of ranks that share its experts.
struct CloneMetrics {
  double clones = 0;             // made by a plan
  double before = 1, after = 1;  // largest over mean of the rows of a rank, without and with clones
  double worst = 1;              // the largest `after`
  double ms = 0;                 // a step waited for weights of clones, the slowest rank, on the host's clock
};

// The load of the experts of one layer, over the steps since the last table; tokens and times are means of them.
struct ExpertMetrics {
  int64_t layer = 0, steps = 1;
  double least = 0, p10 = 0, p50 = 0, p90 = 0, most = 0;  // tokens of an expert, over the experts
  files::Imbalance experts = {};                          // tokens of an expert
  files::Imbalance ranks = {};             // tokens of a rank's experts, over the ranks that hold experts
  double dropped = 0;                      // share of the assignments
  double dispatch_ms = 0, combine_ms = 0;  // of the slowest rank, on the host's clock
  std::optional<CloneMetrics> clones = {};
};

// One step as it was.
struct StepMetrics {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  bool updated = true;  // false: the step was skipped; its loss and norm are still those of its batch
  double lm_loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  double loss_scale = 1.0;
  int64_t global_batch_size = 0;
  double seconds = 0;
  double tflops_per_rank = 0;
  double tokens_per_second = 0;
  int64_t num_zeros = -1;                    // -1: not computed
  double params_norm = -1;                   // -1: not computed
  std::map<std::string, double> terms = {};  // other losses by name (shown_terms)
  std::vector<ExpertMetrics> experts = {};   // by layer; empty: not due
};

// The steps of a log interval.
struct IterationMetrics {
  int64_t iteration = 0, train_iters = 0;
  int64_t consumed_samples = 0;
  double elapsed_ms_per_iteration = 0;
  double tflops_per_rank = 0;
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  double lm_loss = 0;                        // mean over the interval's updates; 0: there was none
  std::map<std::string, double> terms = {};  // likewise, other losses by name
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
// A heading and a line a layer, for people.
std::vector<std::string> expert_lines(const std::vector<ExpertMetrics>& layers);
// "1:02:03" or "0:59"
std::string format_duration(double seconds);

// Throws base::Error where `path` (train.metrics_file) holds something else than metrics, which nobody may lose by
// it.
void check_place_of_metrics(files::FileSystem& disk, const std::string& path);

// The sinks of one process, made on the rank that reports. A sink that cannot be written (full disk) is reported once
// through the log and then left alone: metrics never end a run.
class Metrics {
 public:
  Metrics(const config::Train& config, files::FileSystem& disk, base::Log& log);
  ~Metrics();
  // The metrics file gets every step, one JSON line with numbers that read back to the same double; what is not
  // finite is null, a skipped step has "skipped": true, and "experts" has the layers of a table that is due, which is
  // printed too.
  void step(const StepMetrics& m);
  void iteration(const IterationMetrics& m);
  void evaluation(const EvaluationMetrics& m);

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace metroplex::train
