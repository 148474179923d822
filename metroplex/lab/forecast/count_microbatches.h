// Number of microbatches of a traced step.
#pragma once

#include "forecast/trace.h"

namespace metroplex::forecast {

// Microbatches per step and data-parallel rank. Throws base::Error("plan") if there is none.
int64_t count_microbatches(const RankRequest& request);

}  // namespace metroplex::forecast
