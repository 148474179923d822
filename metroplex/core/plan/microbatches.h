// Number of microbatches per step as a function of consumed samples: constant, a step table ("0:768 250B:1536", with
// thresholds in samples or, given seq_length, in tokens), or linear ramp-up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/batch_schedule.h"

namespace metroplex::plan {

struct MicrobatchSizes {
  int64_t micro_batch_size = 1;
  int64_t data_parallel_size = 1;
  bool decrease_batch_size_if_needed = false;  // rounds the batch size down instead of throwing
};

struct MicrobatchCount {
  int64_t num_microbatches = 1;
  int64_t global_batch_size = 1;          // from the schedule
  int64_t running_global_batch_size = 1;  // actual size; smaller only if rounded down
  bool operator==(const MicrobatchCount&) const = default;
};

using Rampup = config::BatchRampup;

class MicrobatchSchedule {
 public:
  // Each factory throws base::Error("plan") for numbers with which no step could run.
  static MicrobatchSchedule constant(int64_t global_batch_size, const MicrobatchSizes& sizes);
  // seq_length = 0: thresholds are in samples.
  static MicrobatchSchedule steps(const std::string& text, int64_t seq_length, const MicrobatchSizes& sizes);
  static MicrobatchSchedule rampup(const Rampup& rampup, const MicrobatchSizes& sizes);

  // With `check`, throws if the batch size is not a multiple of micro_batch_size * data_parallel_size.
  MicrobatchCount at(int64_t consumed_samples, bool check = true) const;

  // (first sample, global batch size), ascending. A ramp-up has its two end points.
  const std::vector<std::pair<int64_t, int64_t>>& thresholds() const { return thresholds_; }

 private:
  MicrobatchSchedule(const MicrobatchSizes& sizes, std::vector<std::pair<int64_t, int64_t>> thresholds);
  int64_t batch_size_at(int64_t consumed_samples) const;

  MicrobatchSizes sizes_;
  std::vector<std::pair<int64_t, int64_t>> thresholds_;
  std::optional<Rampup> rampup_;
};

}  // namespace metroplex::plan
