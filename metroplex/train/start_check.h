// The check at the start of a run, on ranks that a launcher started on machines of their own: each has looked at its
// own place, and all go on or none does.
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "config/memory.h"
#include "train/fit.h"

namespace metroplex::train {

// Collective. Where any rank's `mine` does not fit, the lowest such rank hands its `refusal()` to `say`; then, unless
// `check` only warns, every rank throws base::Error("config", ...). Returns the largest need of all places, in bytes.
int64_t check_together(const Fit& mine, const comm::World& world, config::FitCheck check,
                       const std::function<std::string()>& refusal,
                       const std::function<void(const std::string&)>& say);

}  // namespace metroplex::train
