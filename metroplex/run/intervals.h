// Decides when a run logs, evaluates, saves and ends, and averages over the steps since the last iteration line. Has
// no side effects; trainer.cpp acts on the results.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"
#include "run/metrics.h"
#include "step/run_length.h"
#include "run/state.h"
#include "step/step.h"

namespace metroplex::run {

// Actions due after a step. `last`: no more steps; `exit_early`: the run ends here although steps remain.
struct Due {
  bool log = false, save = false, evaluate = false, last = false, exit_early = false;
};
Due actions_due(const config::Config& config, const plan::MicrobatchSchedule& schedule, const Position& position,
                bool stop_requested);

class Interval {
 public:
  using Clock = std::chrono::steady_clock;

  // outcome.terms: as in normalized_terms().
  void add(const step::StepOutcome& outcome, int64_t tokens);
  // Excludes `time` from the time per iteration.
  void exclude(Clock::duration time) { start_ += time; }
  int64_t steps() const { return steps_; }
  // Time, losses and tokens per second are means over the interval. Also counts skipped and non-finite steps. The
  // other fields are not set.
  IterationMetrics means() const;
  void begin();

 private:
  double loss_ = 0, tokens_ = 0;
  std::map<std::string, double> terms_;
  int64_t steps_ = 0, updates_ = 0, skipped_ = 0, nan_ = 0;
  Clock::time_point start_ = Clock::now();
};

// Detects a gradient norm that exceeds kFactor times the largest previous norm.
class LargestNorm {
 public:
  static constexpr int kFactor = 10;
  bool is_outlier(double norm);

 private:
  double largest_ = 0;
  int64_t seen_ = 0;
};

}  // namespace metroplex::run
