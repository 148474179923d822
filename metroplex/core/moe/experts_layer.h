// The feed-forward half of a layer with experts, as segments of its block: norm and router, shared expert (if graphs
// contain it, ExpertContext::captures_shared_expert), dispatch plan, dispatch, experts, combine. They pass
// LayerValues (layer_values.h). With model.moe_latent_size, dispatch projects the rows that it sends to that width,
// and combine projects their sums back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/model.h"
#include "device/launch_point.h"
#include "moe/context.h"
#include "moe/dispatcher.h"
#include "moe/experts.h"
#include "moe/layer_values.h"
#include "moe/shared_experts.h"
#include "nn/layer_context.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/segment.h"

namespace metroplex::moe {

struct ExpertsLayerSpec {
  std::string name;   // <layer>.mlp
  int64_t layer = 0;  // global layer number: key of dropout, noise and loads
  nn::NormSpec norm;  // before the router
};

// State shared by the segments of one layer.
struct ExpertsLayer {
  ExpertsLayer(ExpertsLayerSpec spec, const config::Model& model, const nn::LayerContext& context,
               const ExpertContext& experts);

  ExpertsLayerSpec spec;
  int64_t topk;
  device::Target target;
  ExpertContext context;
  Experts experts;  // used by the experts segment; with replica slots also by the dispatch segment
  std::unique_ptr<Dispatcher> dispatcher;
  std::optional<SharedExperts> shared;
  std::optional<nn::Linear> to_latent, from_latent;  // replicated: <name>.fc1_latent_proj and <name>.fc2_latent_proj
};

void add_expert_segments(nn::Block& block, const std::shared_ptr<ExpertsLayer>& layer, const config::Model& model,
                         const nn::LayerContext& context);

}  // namespace metroplex::moe
