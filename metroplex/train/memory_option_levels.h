// The settings that hold less memory and train the same model on the same batches, by kind: of each kind several
// levels, of which a run can take one. Whether a level is allowed beside the rest of a config, and what it saves, is
// not known here.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::train {

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

}  // namespace metroplex::train
