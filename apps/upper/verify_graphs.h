// `metroplex verify --cuda-graphs`: checks whether steps can be captured.
#pragma once

#include "config/config.h"

namespace metroplex::apps {

// Prints the problems and returns the command's exit code. `config` must be parsed, for the CPU, with a vocabulary
// size.
int verify_graphs(const config::Config& config);

}  // namespace metroplex::apps
