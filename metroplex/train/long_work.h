// Work of unknown length on some ranks (an index of hours) while the others wait: not inside one collective, which
// would time out, but in a round of short ones, so that a rank that dies is still noticed at once.
#pragma once

#include <functional>

#include "comm/world.h"

namespace metroplex::train {

// Collective over the world; returns when the work of every rank is done, and throws what this rank's threw. Where a
// peer fails the work is left to itself: it must own all it uses.
void do_with_peers(const std::function<void()>& work, const comm::World& world);

}  // namespace metroplex::train
