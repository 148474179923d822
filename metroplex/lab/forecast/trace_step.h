// Runs one real training step of a rank on the meta device and records its operators, collectives and waits.
#pragma once

#include "forecast/trace.h"
#include "replay/step_trace.h"

namespace metroplex::forecast {

// Like trace_rank(): allocates nothing and needs no other rank. The step has at most three microbatches, one for each
// replay::Position.
replay::StepTrace trace_step(const RankRequest& request);
// Returns the parameter families of a rank, for RankRequest::other_stages of another stage.
std::vector<distributed::FamilyKey> find_families(const RankRequest& request);

}  // namespace metroplex::forecast
