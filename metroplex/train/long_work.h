// Work of unknown length on some ranks (building a dataset index may take hours) while the others wait. Waiting
// inside one collective would time out, so the ranks run short ones in a loop, which also notices at once when a rank
// dies.
#pragma once

#include <functional>

#include "comm/world.h"

namespace metroplex::train {

// Collective over the world; returns when the work of every rank is done, and throws what this rank's threw. Where a
// peer fails the work is left to itself: it must own all it uses.
void do_with_peers(const std::function<void()>& work, const comm::World& world);

}  // namespace metroplex::train
