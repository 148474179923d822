// The feed-forward half of a layer of experts, as segments of its block: norm and router, dispatch plan, dispatch,
// experts, combine. What passes between them: values.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "config/model.h"
#include "cuda/launch_point.h"
#include "moe/context.h"
#include "moe/dispatcher.h"
#include "moe/experts.h"
#include "moe/shared_experts.h"
#include "nn/layer_context.h"
#include "nn/norm.h"
#include "nn/segment.h"

namespace metroplex::moe {

struct ExpertsLayerSpec {
  std::string name;   // <layer>.mlp
  int64_t layer = 0;  // global number: key of dropout, noise and loads
  nn::NormSpec norm;  // before the router
};

// What the segments of one layer share.
struct ExpertsLayer {
  ExpertsLayer(ExpertsLayerSpec spec, const config::Model& model, const nn::LayerContext& context,
               const ExpertContext& experts);

  ExpertsLayerSpec spec;
  int64_t topk;
  cuda::Target target;
  ExpertContext context;
  Experts experts;  // of the experts segment; with slots the dispatch segment reads their weights too
  std::unique_ptr<Dispatcher> dispatcher;
  std::optional<SharedExperts> shared;
  // What the host alone knows between the dispatch and the combine of a microbatch: who sends how many rows to whom.
  std::map<const nn::Microbatch*, RowTable> tables;
  // Between the dispatch and the experts of a microbatch in one island: weights of clones that are still to come.
  std::map<const nn::Microbatch*, ClonesUnderWay> clones;
};

// Appends them.
void add_expert_segments(nn::Block& block, const std::shared_ptr<ExpertsLayer>& layer, const config::Model& model,
                         const nn::LayerContext& context);

}  // namespace metroplex::moe
