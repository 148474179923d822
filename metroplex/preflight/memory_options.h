// Memory options of a run that does not fit: other settings of the same run that hold less, each predicted as the run
// itself is, none of which changes what is learned. They are sorted by what they cost in time, and what they save is
// computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "preflight/fit.h"

namespace metroplex::preflight {

struct MemoryOption {
  std::vector<std::string> settings;  // "memory.recompute_granularity=full", as --section.key=value takes them
  std::string what;                   // in words: "recompute everything"
  int64_t need = 0;                   // bytes of the fullest domain then
  int64_t saves = 0;                  // of the fullest domain as it is
  bool fits = false;
  double cost = 0;  // share of a step that it adds, about (added_cost)
};

struct MemoryOptions {
  std::vector<MemoryOption> single;  // at most three: those that fit, else those that save most for their cost
  // Several that fit for less than any that fits alone; where none do that are looked at, all that help.
  std::optional<MemoryOption> together;
};

// `now` is fit(request): what it holds is what the options are compared with. One that the rules of the
// config refuse, or that saves nothing, is left out.
MemoryOptions memory_options(const FitRequest& request, const Fit& now,
                             const train::Predictor& predict = train::predict_rank);

// The settings that hold less memory and train the same model on the same batches, by kind: of each kind several
// levels, of which a run can take one; and what one costs. Whether a level is allowed beside the rest of a config,
// and what it saves, is not known here.

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
  std::string what;                   // in words
};

struct OptionLevels {
  OptionKind kind;
  std::vector<OptionLevel> levels;
};

// What `config`, resolved, does not do already. `gpu`: where ranks compute.
std::vector<OptionLevels> option_levels(const config::Config& config, bool gpu);

// What another setting costs in time, about: the operations and the bytes of a step that it adds, as a share of the
// step's operations; 0 where nothing is added. It orders memory options, no more. `before` and `after` are figures of
// the same rank, under `now` and under `then`.
double added_cost(const FitRequest& now, const RankFigures& before, const FitRequest& then, const RankFigures& after);

}  // namespace metroplex::preflight
