// Memory options for a run that does not fit: settings that need less memory and train the same model. Each is
// predicted like the run itself. Options are sorted by their cost in time; their savings are computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "forecast/fit.h"

namespace metroplex::forecast {

struct MemoryOption {
  std::vector<std::string> settings;  // "memory.recompute_granularity=full", in the form of --section.key=value
  std::string what;                   // description: "recompute everything"
  int64_t need = 0;                   // bytes needed in the fullest domain with this option
  int64_t saves = 0;                  // bytes saved in the fullest domain
  bool fits = false;
  double cost = 0;  // approximate fraction of a step that it adds (added_cost)
};

struct MemoryOptions {
  std::vector<MemoryOption> single;  // at most three: options that fit, else those that save most
  // A combination of options that makes the run fit at a lower cost than any single option. If no tried combination
  // fits, all options that help.
  std::optional<MemoryOption> together;
};

// Compares options with `now`, which is fit(request). Drops options that violate the config rules or save nothing.
MemoryOptions memory_options(const FitRequest& request, const Fit& now, const Predictor& predict = predict_rank);

// Settings that need less memory and train the same model on the same batches, by kind. Each kind has several levels;
// a run uses at most one. This list does not consider the rules for the rest of the config.

enum class OptionKind {
  sequence,
  remainders,
  sharding,
  micro_batch,
  recompute,
  optimizer_offload,
  activation_offload
};

struct OptionLevel {
  std::vector<std::string> settings;  // "parallel.sequence_parallel=true"
  std::string what;
};

struct OptionLevels {
  OptionKind kind;
  std::vector<OptionLevel> levels;
};

// Returns the levels that the resolved `config` does not use yet. `gpu`: ranks compute on GPUs.
std::vector<OptionLevels> option_levels(const config::Config& config, bool gpu);

// Approximate time cost of another setting: added FLOPs and transferred bytes, as a fraction of the step's FLOPs; at
// least 0. Its only use is to sort memory options. `before` and `after` are predictions for the same rank, under
// `now` and `then`.
double added_cost(const FitRequest& now, const RankFigures& before, const FitRequest& then, const RankFigures& after);

}  // namespace metroplex::forecast
