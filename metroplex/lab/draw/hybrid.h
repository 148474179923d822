// Draws a hybrid context parallel plan (hybrid_context.h) for a terminal: one row per rank, time from left to right.
#pragma once

#include <string>

#include "plan/hybrid_context.h"

namespace metroplex::draw {

// Scales the time from the first start to the last end to `columns` columns. Ends with a newline. A microbatch is
// drawn with its number of ranks: 1, 2, 4, 8, then G for 16 and + for more. '|' marks its start, '.' is idle time.
std::string draw_text(const plan::HybridPlan& plan, int columns);

}  // namespace metroplex::draw
