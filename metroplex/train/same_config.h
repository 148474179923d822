// Ranks that a launcher starts separately read their own files, options and environment. Different learning rates
// would train silently and different run lengths would hang, so the ranks compare their configurations first.
#pragma once

#include <string>

#include "comm/world.h"
#include "config/config.h"

namespace metroplex::train {

// Collective over all ranks, whatever layout each was told. "" where their configurations say the same, else, the
// same on every rank, the first keys in which the lowest such rank differs from rank 0, with both values.
// Left out are keys of one machine (CPU threads, network interface, memory, folder and threads beside it), run.nproc,
// which says who starts the ranks, and what rank 0 alone shows or writes.
std::string config_difference(const config::Config& mine, const comm::World& world);

}  // namespace metroplex::train
