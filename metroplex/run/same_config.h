// Checks that all ranks have the same configuration. Separately launched ranks read their own files, options and
// environment. Different learning rates would train silently, and different run lengths would deadlock.
#pragma once

#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace metroplex::run {

// Collective over all ranks; does not depend on the configured layout. Returns "" if the configurations agree.
// Otherwise every rank gets the first differing keys of the lowest differing rank, with both values. Excluded are
// per-machine keys (CPU threads, network interface, offload folder, ...), run.nproc, and outputs of rank 0.
std::string config_difference(const config::Config& mine, const comm::World& world);

}  // namespace metroplex::run
