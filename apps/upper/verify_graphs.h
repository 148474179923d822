// The part of `metroplex verify` that asks whether steps can be captured.
#pragma once

#include "config/config.h"

namespace metroplex::apps {

// Prints what would go wrong; the exit code of the command. `config` as parsed, for the CPU, with a vocabulary.
int verify_graphs(const config::Config& config);

}  // namespace metroplex::apps
