// The texts that let the batch size grow: steps "0:768 250B:1536" and a ramp-up "16 16 300000". Read here for the
// checks of a configuration and for plan/microbatches.h alike. Readers return nothing for what is no such text, and
// say why in `problem`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::config {

// "1.5K" -> 1500, with K, M, B, T as powers of 1000 (either case).
std::optional<int64_t> read_count(const std::string& text, std::string& problem);

struct BatchStep {
  int64_t first_sample = 0;
  int64_t global_batch_size = 1;
};

// THRESHOLD:BATCH_SIZE, separated by blanks or commas, in the order of their thresholds, the first of which is 0.
// Thresholds are tokens of samples that hold `seq_length`, or samples with seq_length 0.
std::optional<std::vector<BatchStep>> read_batch_steps(const std::string& text, int64_t seq_length,
                                                       std::string& problem);

struct BatchRampup {
  int64_t start = 1;      // first global batch size
  int64_t increment = 1;  // added in equal shares of `samples`
  int64_t samples = 1;
  int64_t global_batch_size = 1;  // the last one
};

// "" when such a ramp-up can run, else the rule it breaks.
std::string rampup_problem(const BatchRampup& rampup);

// "START INCREMENT SAMPLES", to end at `global_batch_size`.
std::optional<BatchRampup> read_batch_rampup(const std::string& text, int64_t global_batch_size,
                                             std::string& problem);

}  // namespace metroplex::config
