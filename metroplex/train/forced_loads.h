// The trace of model.moe_router_force_trace, as routers want it.
#pragma once

#include <memory>

#include "config/config.h"
#include "moe/context.h"

namespace metroplex::train {

// Null where no trace is named. Of a trace that was recorded over as many ranks of ep and etp each rank gets the
// loads of its own source, of others the sum over all sources. Throws base::Error where the trace has other experts
// than the model, lacks one of its layers or has no iteration, or cannot be read (files/expert_trace.h).
std::shared_ptr<const moe::RecordedLoads> forced_loads(const config::Model& model, const moe::ExpertContext& experts);

}  // namespace metroplex::train
