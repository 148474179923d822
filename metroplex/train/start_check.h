// The check at the start of a run, on ranks that a launcher started on machines of their own: each has looked at its
// own place, and all go on or none does.
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "train/fit.h"

namespace metroplex::train {

struct StartVerdict {
  int64_t need = 0;  // the largest of all places, in bytes
  int misfit = -1;   // the lowest rank whose place does not do; -1: all fit
};

// Collective. The lowest rank that does not fit hands its `refusal()` to `say` before any rank returns: one that
// ended earlier would have its launcher end the one that speaks.
StartVerdict check_together(const Fit& mine, const comm::World& world, const std::function<std::string()>& refusal,
                            const std::function<void(const std::string&)>& say);

}  // namespace metroplex::train
