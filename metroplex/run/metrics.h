// Reports metrics. Writes the iteration line every train.log_interval steps in Megatron's format, which scripts
// parse. Writes a JSON line every step, and TensorBoard event files every train.tensorboard_log_interval steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/config.h"
#include "files/expert_load.h"
#include "files/file_system.h"
#include "run/slowest_rank.h"
#include "run/step_times.h"
#include "step/rounding_figures.h"
#include "step/step.h"

namespace metroplex::run {

// Means over the ECHO plans of a layer. There is one plan per microbatch and expert-parallel group.
struct ReplicaMetrics {
  double replicas = 0;           // expert replicas per plan
  double before = 1, after = 1;  // max / mean of the rows per rank, without and with replicas
  double worst = 1;              // the largest `after`
  double ms = 0;                 // time per step spent waiting for replica weights; slowest rank, host clock
};

// Expert load of one layer over the steps since the last table. Tokens and times are means per step.
struct ExpertMetrics {
  int64_t layer = 0, steps = 1;
  double least = 0, p10 = 0, p50 = 0, p90 = 0, most = 0;  // tokens per expert: quantiles over the experts
  files::Imbalance experts = {};                          // imbalance of tokens per expert
  files::Imbalance ranks = {};             // imbalance of tokens per rank, over the ranks that hold experts
  double dropped = 0;                      // fraction of the token-expert assignments
  double dispatch_ms = 0, combine_ms = 0;  // slowest rank, host clock
  std::optional<ReplicaMetrics> replicas = {};
};

struct StepMetrics {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  step::StepOutcome outcome = {};  // terms: normalized_terms; a skipped step has the loss and norm of its batch
  int64_t global_batch_size = 0;
  double seconds = 0;
  double tflops_per_rank = 0;
  double tokens_per_second = 0;
  double params_norm = -1;                         // -1: not computed
  std::vector<ExpertMetrics> experts = {};         // by layer; empty: not due
  std::vector<step::LayerRounding> rounding = {};  // by layer; empty: not due
};

// Means over the steps of a log interval.
struct IterationMetrics {
  StepMetrics last = {};  // the last step of the interval
  int64_t train_iters = 0;
  double elapsed_ms_per_iteration = 0;
  double tflops_per_rank = 0;
  double lm_loss = 0;                        // mean over the interval's updates; 0: no updates
  std::map<std::string, double> terms = {};  // other losses by name; mean over the updates
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
// " validation loss at iteration 100 on validation set | lm loss value: 4.2E+00 | lm loss PPL: 6.6E+01 | ", with PPL
// = exp(min(20, loss)).
std::string evaluation_line(const EvaluationMetrics& m);
// The human-readable expert table: two heading lines, then one line per layer.
std::vector<std::string> expert_lines(const std::vector<ExpertMetrics>& layers);
// "1:02:03" or "0:59"
std::string format_duration(double seconds);

// Throws base::Error("files") if `path` (train.metrics_file) is a non-empty file that does not start with metrics.
void check_metrics_file(files::FileSystem& disk, const std::string& path);

// The sinks of the reporting process. A sink that cannot be written (full disk) is reported once through the log and
// then disabled: a metrics error never ends a run.
class Metrics {
 public:
  Metrics(const config::Train& config, files::FileSystem& disk, base::Log& log);
  ~Metrics();
  // Appends one JSON line per step to the metrics file. Numbers read back to the same double; non-finite values are
  // null. A skipped step has "skipped": true. "experts" holds the layers of a due expert table, which is also logged;
  // "rounding" the operands of each layer in a step of train.log_rounding_interval.
  void step(const StepMetrics& m);
  void iteration(const IterationMetrics& m);
  void evaluation(const EvaluationMetrics& m);
  // Adds a JSON line to the description of the run, the file train.metrics_file with ".run" appended. The first line
  // replaces the description of an earlier start. `metroplex report` shows it.
  void describe(const std::string& line);
  // Logs the sentence and appends one JSON line with the single key "slowest".
  void slowest(const SlowestRank& slowest);
  // Logs the comparison and appends one JSON line with the single key "time", which `metroplex report` shows.
  void times(const StepComparison& comparison);

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace metroplex::run
