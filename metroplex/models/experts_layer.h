// The feed-forward half of a layer of experts, as segments of its block: norm and router, dispatch
// plan, dispatch, experts, combine. What passes between them: moe/values.h, moe/dispatch_values.h.
#pragma once

#include "config/model.h"
#include "models/block.h"
#include "moe/context.h"
#include "nn/segment.h"

namespace metroplex::models {

// Whether the layer `number` of the model has experts.
bool has_experts(const config::Model& model, int64_t number);

// Appends them.
void add_expert_segments(nn::Block& block, const LayerSpec& spec, const config::Model& model,
                         const nn::LayerContext& context, const moe::ExpertContext& experts);

}  // namespace metroplex::models
