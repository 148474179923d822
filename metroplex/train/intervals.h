// When a run logs, evaluates, saves and ends, and the means since its last iteration line. Pure functions of numbers:
// trainer.cpp acts on them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"
#include "train/metrics.h"
#include "train/run_length.h"
#include "train/state.h"
#include "train/step.h"

namespace metroplex::train {

// What is due after a step. `last`: no more steps; `leave`: the run ends here although there were more.
struct Due {
  bool log = false, save = false, evaluate = false, last = false, leave = false;
};
Due due_after(const config::Config& config, const plan::MicrobatchSchedule& schedule, const Position& position,
              bool stop_requested);

// Steps since the last iteration line.
class Interval {
 public:
  using Clock = std::chrono::steady_clock;

  // `terms`: the step's other losses, as they are shown.
  void add(const StepOutcome& outcome, int64_t tokens, const std::map<std::string, double>& terms = {});
  // Time that does not count as time per iteration.
  void leave_out(Clock::duration time) { start_ += time; }
  int64_t steps() const { return steps_; }
  // Fills the means over the interval: time, loss, tokens, skipped and not finite.
  void describe(IterationMetrics& metrics) const;
  void begin();

 private:
  double loss_ = 0, tokens_ = 0;
  std::map<std::string, double> terms_;  // sums
  int64_t steps_ = 0, updates_ = 0, skipped_ = 0, nan_ = 0;
  Clock::time_point start_ = Clock::now();
};

// A gradient norm far above all before it.
class LargestNorm {
 public:
  static constexpr int kFactor = 10;
  bool unexpectedly_large(double norm);

 private:
  double largest_ = 0;
  int64_t seen_ = 0;
};

}  // namespace metroplex::train
