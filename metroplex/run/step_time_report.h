// Compares the time of steps with the simulated step of a machine (train.machine), every log interval.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "price/machine.h"
#include "run/run_context.h"
#include "run/step_times.h"

namespace metroplex::run {

// Throws base::Error("config") that names train.machine unless it is empty, a built-in name, or a valid file.
void check_machine(const config::Train& train);

class StepTimeReport {
 public:
  // Measures the steps of `run`, which must outlive this object, on every rank.
  explicit StepTimeReport(RunContext& run);
  ~StepTimeReport();
  StepTimeReport(const StepTimeReport&) = delete;
  StepTimeReport& operator=(const StepTimeReport&) = delete;

  StepTimer& timer() { return timer_; }
  // Adds a step of this many microbatches to the interval. A new number of microbatches starts a new interval, whose
  // first steps make one-time allocations and captures and are ignored.
  void add(const StepParts& step, int64_t num_microbatches);
  // Ends the interval, logs its comparison for the rank with the longest computing time, and warns if the difference
  // exceeds the error bar. Logs nothing if no step was added. Collective.
  void report(int64_t iteration);

 private:
  std::optional<StepComparison> compare(int64_t iteration);
  // Returns "" if the difference is within the error bar, or if its part has been named before.
  std::string warning(const StepComparison& comparison);
  const replay::StepTime* predict(int64_t num_microbatches);

  RunContext& run_;
  StepTimer timer_;
  std::optional<price::Machine> machine_;                           // rank 0
  std::map<int64_t, std::optional<replay::StepTime>> predictions_;  // by number of microbatches; empty: failed
  std::set<std::string> named_;                                     // parts
  StepParts sum_;
  int64_t steps_ = 0, num_microbatches_ = 0, ignored_ = 0;
};

}  // namespace metroplex::run
