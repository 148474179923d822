// 1F1B (PipeDream-flush): after a warm-up of as many forwards as there are stages behind, every rank alternates one
// forward and one backward. The bubble of GPipe with at most p - r microbatches alive on rank r.
#pragma once

#include "plan/schedules/registry.h"

namespace metroplex::plan {

// Needs num_chunks == 1. Holds min(num_microbatches, num_stages - rank) forwards.
PipelineTable build_one_f_one_b(const ScheduleRequest& request);

}  // namespace metroplex::plan
