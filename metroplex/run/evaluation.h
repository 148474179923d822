// Evaluations of a run: the mean loss over the validation or test sets.
#pragma once

#include <cstdint>
#include <optional>

#include "run/run_context.h"
#include "run/run_data.h"

namespace metroplex::run {

// Returns the mean loss over the datasets of the split, and reports each dataset's loss. Returns nullopt if a stop
// was requested during the evaluation. `consumed`: samples that earlier evaluations read from each dataset. Throws
// base::Error("data") if a dataset is smaller than one microbatch of all data-parallel ranks. Collective.
std::optional<double> evaluate(RunContext& run, const RunData& data, Split split, int64_t consumed);

// The samples that this number of evaluations reads from a dataset.
int64_t samples_evaluated(const RunContext& run, int64_t evaluations);

}  // namespace metroplex::run
