// Parses batch size schedules: steps "0:768 250B:1536" and ramp-up "16 16 300000". The configuration checks and
// plan/microbatches.h share these readers. A reader returns nothing for invalid text and sets `problem` to the
// reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::config {

// "1.5K" -> 1500. K, M, B, T are powers of 1000 in either case.
std::optional<int64_t> read_count(const std::string& text, std::string& problem);

struct BatchStep {
  int64_t first_sample = 0;
  int64_t global_batch_size = 1;
};

// Reads THRESHOLD:BATCH_SIZE entries, separated by blanks or commas, with ascending thresholds that start at 0.
// Thresholds are tokens of samples with `seq_length` tokens, or samples if seq_length is 0.
std::optional<std::vector<BatchStep>> read_batch_steps(const std::string& text, int64_t seq_length,
                                                       std::string& problem);

struct BatchRampup {
  int64_t start = 1;      // first global batch size
  int64_t increment = 1;  // added at equal intervals over `samples`
  int64_t samples = 1;
  int64_t global_batch_size = 1;  // final size
};

// Returns "" if the ramp-up can run, else the violated rule.
std::string rampup_problem(const BatchRampup& rampup);

// Reads "START INCREMENT SAMPLES"; the ramp-up ends at `global_batch_size`.
std::optional<BatchRampup> read_batch_rampup(const std::string& text, int64_t global_batch_size,
                                             std::string& problem);

}  // namespace metroplex::config
