// `metroplex verify --precision`: shows in which layers the number formats change a step.
#pragma once

#include "config/config.h"

namespace metroplex::apps {

// Prints the errors of each block and returns the command's exit code. `config` must be parsed, with a vocabulary
// size.
int verify_precision(const config::Config& config);

}  // namespace metroplex::apps
