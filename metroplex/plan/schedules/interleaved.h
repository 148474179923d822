// Interleaved 1F1B (Narayanan et al., 2021, arXiv:2104.04473): every rank holds several chunks of the model, so the
// bubble shrinks by their number; paid with more p2p and a longer warm-up. A chunk takes a group of microbatches
// in a row; with groups larger than num_stages, rank 0 stores what the last rank sends until its turn comes.
#pragma once

#include "plan/schedules/registry.h"

namespace metroplex::plan {

// Throws what interleaved_refusal says. Holds the warm-up + 1 forwards (see count_warmup), all if the warm-up is
// everything.
PipelineTable build_interleaved(const ScheduleRequest& request);

}  // namespace metroplex::plan
