// Routing by recorded loads (model.moe_router_force_trace).
#pragma once

#include <memory>

#include "config/config.h"
#include "files/file_system.h"
#include "moe/context.h"

namespace metroplex::step {

// Returns null if model.moe_router_force_trace is not set. If the trace was recorded with the same ep and etp, each
// rank gets the loads of its own source rank. Otherwise every rank gets the sum over all sources. Throws base::Error
// if the trace has a different number of experts, lacks a MoE layer, has no iteration or cannot be read
// (files/expert_trace.h).
std::shared_ptr<const moe::RecordedLoads> forced_loads(const config::Model& model, const moe::ExpertContext& experts,
                                                       files::FileSystem& disk);

}  // namespace metroplex::step
