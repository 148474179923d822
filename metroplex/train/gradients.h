// What surrounds the run of the executor that makes the gradients, in a step and in the search for the microbatch
// whose gradient is not finite (step_errors.h).
#pragma once

#include <cstdint>

#include "train/assemble.h"

namespace metroplex::train {

// Before the first forward of so many microbatches: gradients and the counts of a step start at zero.
void begin_gradients(Assembly& assembly, int64_t microbatches);

// Waits for the reductions over the data-parallel ranks, and sums partial and shared gradients over the ranks that
// hold the summands. Collective.
void finish_gradients(Assembly& assembly);

}  // namespace metroplex::train
