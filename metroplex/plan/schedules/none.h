// No pipelining: one rank, microbatch after microbatch, forward through all its chunks and backward through
// them at once.
#pragma once

#include "plan/schedules/registry.h"

namespace metroplex::plan {

// Needs num_stages == 1. Holds one forward a chunk.
PipelineTable build_none(const ScheduleRequest& request);

}  // namespace metroplex::plan
