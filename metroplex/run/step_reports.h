// Reports of a training run: the iteration line, per-step metrics, expert loads, memory and graphs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "device/memory_meter.h"
#include "forecast/memory_report.h"
#include "run/expert_loads.h"
#include "run/intervals.h"
#include "run/run_context.h"
#include "run/slowest_rank.h"
#include "run/step_time_report.h"

namespace metroplex::run {

class StepReports {
 public:
  using Clock = std::chrono::steady_clock;

  // Call after the output files are open, at the first step of the run. `meter` measures the tensors of the run;
  // null: memory is not reported. `run` must outlive this object. Collective.
  StepReports(RunContext& run, std::unique_ptr<device::MemoryMeter> meter);

  void begin_step();
  // Calls the loader of microbatches.
  template <class Loader>
  auto load(const Loader& loader) {
    if (rank_timer_) rank_timer_->begin_loading();
    if (times_) times_->timer().begin_loading();
    auto batches = loader();
    if (times_) times_->timer().end_loading();
    if (rank_timer_) rank_timer_->end_loading();
    return batches;
  }
  // Call after the microbatches are made. True if the memory of this step is measured, which is the second step of
  // the run. It must run eagerly, and no microbatches may be fetched in it.
  bool measure_memory();
  // Call before a step. True if train.log_rounding_interval applies to it; it must run eagerly.
  bool measure_rounding();
  bool is_measuring() const { return memory_ != nullptr; }
  // Call before and after the computation of a step of this many microbatches.
  void begin_computation();
  void end_computation(size_t num_microbatches);
  // Reports the memory that was measured in a step of this many microbatches, and newly captured graphs.
  void memory_and_graphs(size_t num_microbatches);
  // Reports a step after run.position has advanced. Collective if train.log_params_norm, expert loads, or
  // rounding figures are due.
  void step(const step::StepOutcome& outcome, int64_t global_batch_size);
  // Writes the iteration line of the steps since the last one. Collective with train.timing_log_level,
  // train.log_slowest_rank and train.machine.
  void iteration_line();
  // Excludes `time` from the time per iteration.
  void exclude(Clock::duration time) { interval_.exclude(time); }
  double seconds_of_run() const;

 private:
  // Rank 0: lines of Metrics::describe.
  void describe_run();
  void describe_memory(const forecast::MeasuredMemory& measured, int64_t num_microbatches);
  double tflops_per_rank(double seconds, int64_t global_batch_size) const;

  RunContext& run_;
  std::unique_ptr<device::MemoryMeter> meter_;  // freed after the report
  std::unique_ptr<forecast::MemoryReport> memory_;
  std::optional<ExpertLoads> experts_;
  std::optional<RankTimer> rank_timer_;  // with train.log_slowest_rank
  std::optional<StepTimeReport> times_;  // with train.machine
  Interval interval_;                    // since the last iteration line
  LargestNorm norms_;
  StepMetrics last_;  // of the last step
  int64_t reported_graphs_ = 0;
  const int64_t first_iteration_;
  const Clock::time_point run_start_ = Clock::now();
  Clock::time_point step_start_;
};

}  // namespace metroplex::run
