// A picture of a plan of hybrid context parallelism (hybrid_context.h) for a terminal: a row for every rank, from
// left to right what it computes when.
#pragma once

#include <string>

#include "plan/hybrid_context.h"

namespace metroplex::plan {

// Ends with a newline. `columns` for the time from the first start to the last end. A microbatch is drawn by the
// number of ranks that share it, as 2 for two, 4 for four, 8, then G for 16 and + for more; '|' is where it begins,
// '.' waiting.
std::string draw_text(const HybridPlan& plan, int columns);

}  // namespace metroplex::plan
