// Parts of the page's data other than curves. Each function returns null for a run without such lines.
#pragma once

#include "page/run_file.h"

namespace metroplex::page {

// Rounds to six digits, which are visible in a curve. NaN and Inf become null, because JSON lacks them.
Json rounded(double value);

// Bars of the rank with the largest measured peak; without measurements, the prediction of the line "run".
Json memory_json(const RunData& run);
Json time_json(const RunData& run);
// The strip has one interval per bucket, the one that costs most seconds. The table has the last intervals.
Json slowest_json(const RunData& run);
// A row per layer and a column per bucket of iterations, which holds the largest imbalance.
Json experts_json(const RunData& run);
// Operands of the last measured step, those with the largest errors first.
Json rounding_json(const RunData& run);

}  // namespace metroplex::page
