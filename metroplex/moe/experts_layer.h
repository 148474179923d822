// The feed-forward half of a layer of experts, as segments of its block: norm and router, shared expert (where graphs
// contain it, ExpertContext::captures_shared_expert), dispatch plan, dispatch, experts, combine. What passes between
// them has names.
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
#include "nn/value.h"

namespace metroplex::moe {

// Names of values (nn/value.h). T: tokens of this rank, s (/tp) * b,
// in the order of the rows of hidden_states; k: moe_router_topk; R: rows for the local experts, at least as many as
// came.

inline constexpr const char* kInput = "moe_input";            // [s (/tp), b, h]: behind the norm
inline constexpr const char* kTopExperts = "top_experts";     // [T, k] int64: chosen experts; -1: dropped
inline constexpr const char* kTopProbs = "top_probs";         // [T, k] at least fp32; of what was dropped 0
inline constexpr const char* kRows = "expert_rows";           // [R, h]: by local expert; behind the last one, padding
inline constexpr const char* kRowProbs = "expert_row_probs";  // [R], of kTopProbs' type
inline constexpr const char* kRowCounts = "expert_row_counts";  // [home experts + slots] int64
inline constexpr const char* kCloneOwners = "clone_owners";     // ClonePlan::owners
// Weights of clones, where a rank has slots (CloneWeights of clones.h); biases where the model has them.
inline constexpr const char* kCloneWeight1 = "clone_fc1_weight";  // [slots, ffn (x 2), h]
inline constexpr const char* kCloneWeight2 = "clone_fc2_weight";  // [slots, h, ffn]
inline constexpr const char* kCloneBias1 = "clone_fc1_bias";      // [slots, ffn (x 2)]
inline constexpr const char* kCloneBias2 = "clone_fc2_bias";      // [slots, h]
inline constexpr const char* kSharedOutput = "shared_output";     // [s (/tp), b, h]: of the shared expert
// SharedExperts::Begun, where a graph ends between its two steps.
inline constexpr const char* kSharedProduct = "shared_fc1_output";  // [s, b, ffn / tp (x 2)]
inline constexpr const char* kSharedScore = "shared_gate_score";    // [s (/tp), b, 1]
inline constexpr const char* kRowOutput = "expert_output";          // [R, h]; summands over etp

// The plans of a dispatch, and clones of experts, among the values between two segments. What is not defined is not
// among them, nor is the table of a CombinePlan.
void add_plan(nn::Values& values, const DispatchPlan& plan);
void add_plan(nn::Values& values, const CombinePlan& plan);
// topk: moe_router_topk.
DispatchPlan dispatch_plan_in(const nn::Values& values, int64_t topk);
CombinePlan combine_plan_in(const nn::Values& values, int64_t topk);
void add_clones(nn::Values& values, const CloneWeights& clones);
CloneWeights clones_in(const nn::Values& values);
// Without those of the plan.
nn::Values without_dispatch_plan(const nn::Values& values);

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
