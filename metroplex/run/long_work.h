// Runs work of unknown length on some ranks while the other ranks wait. Building a dataset index may take hours, and
// one long collective would time out. The ranks therefore run short collectives in a loop, which also detects a dead
// rank at once.
#pragma once

#include <functional>

#include "comm/world.h"

namespace metroplex::run {

// Collective over the world. Returns when the work of every rank is done; rethrows this rank's exception. If a peer
// fails, the work continues on a detached thread, so it must own everything it uses.
void run_with_peers(const std::function<void()>& work, const comm::World& world);

// Collective over the world. True if `mine` is true on every rank.
bool all_ranks_true(bool mine, const comm::World& world);

}  // namespace metroplex::run
