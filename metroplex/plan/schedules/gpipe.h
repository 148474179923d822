// GPipe (Huang et al., 2019): all forwards, then all backwards. The plainest picture of a bubble, (p-1)/(m+p-1) of
// the time, and the largest memory: every microbatch is alive at the turn.
#pragma once

#include "plan/schedules/registry.h"

namespace metroplex::plan {

// Needs num_chunks == 1. Holds num_microbatches forwards on every rank.
PipelineTable build_gpipe(const ScheduleRequest& request);

}  // namespace metroplex::plan
