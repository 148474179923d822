// How many microbatches a step has, as a function of the samples consumed so far: constant, by a table of steps
// ("0:768 250B:1536", thresholds in samples or, given seq_length, in tokens), or by linear ramp-up.
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
  bool decrease_batch_size_if_needed = false;  // run the next smaller batch size that divides, instead of refusing
};

struct MicrobatchCount {
  int64_t num_microbatches = 1;
  int64_t global_batch_size = 1;          // what the schedule says
  int64_t running_global_batch_size = 1;  // what really runs: smaller only where decreased
  bool operator==(const MicrobatchCount&) const = default;
};

using Rampup = config::BatchRampup;

class MicrobatchSchedule {
 public:
  // Each throws base::Error("plan") for numbers that no step could run with.
  static MicrobatchSchedule constant(int64_t global_batch_size, const MicrobatchSizes& sizes);
  // seq_length 0: thresholds are samples.
  static MicrobatchSchedule steps(const std::string& text, int64_t seq_length, const MicrobatchSizes& sizes);
  static MicrobatchSchedule rampup(const Rampup& rampup, const MicrobatchSizes& sizes);

  // With `check`, throws when the batch size due does not divide by micro_batch_size * data_parallel_size.
  MicrobatchCount at(int64_t consumed_samples, bool check = true) const;

  // (first sample, global batch size), ascending; of a ramp-up its two ends.
  const std::vector<std::pair<int64_t, int64_t>>& thresholds() const { return thresholds_; }

 private:
  MicrobatchSchedule(const MicrobatchSizes& sizes, std::vector<std::pair<int64_t, int64_t>> thresholds);
  int64_t batch_size_at(int64_t consumed_samples) const;

  MicrobatchSizes sizes_;
  std::vector<std::pair<int64_t, int64_t>> thresholds_;
  std::optional<Rampup> rampup_;
};

}  // namespace metroplex::plan
