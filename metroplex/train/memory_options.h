// Memory options of a run that does not fit: other settings of the same run that hold less, each predicted as the run
// itself is, none of which changes what is learned. They are sorted by what they cost in time, and what they save is
// computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/fit.h"

namespace metroplex::train {

struct MemoryOption {
  std::vector<std::string> settings;  // "memory.recompute_granularity=full", as --section.key=value takes them
  std::string what;                   // in words: "recompute everything"
  int64_t need = 0;                   // bytes of the fullest domain then
  int64_t saves = 0;                  // of the fullest domain as it is
  bool fits = false;
  double cost = 0;  // share of a step that it adds, about (memory_option_cost.h)
};

struct MemoryOptions {
  std::vector<MemoryOption> single;  // at most three: those that fit, else those that save most for their cost
  // Several that fit for less than any that fits alone; where none do that are looked at, all that help.
  std::optional<MemoryOption> together;
};

// `now` is fit(request): what it holds is what the options are compared with. One that the rules of the
// config refuse, or that saves nothing, is left out.
MemoryOptions memory_options(const FitRequest& request, const Fit& now, const Predictor& predict = predict_rank);

}  // namespace metroplex::train
