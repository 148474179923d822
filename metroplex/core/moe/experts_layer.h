// The feed-forward half of a layer with experts, as segments of its block: norm and router, shared expert (if graphs
// contain it, ExpertContext::captures_shared_expert), dispatch plan, dispatch, experts, combine. The values passed
// between them are named.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "config/model.h"
#include "device/launch_point.h"
#include "moe/context.h"
#include "moe/dispatcher.h"
#include "moe/experts.h"
#include "moe/shared_experts.h"
#include "nn/layer_context.h"
#include "nn/norm.h"
#include "nn/segment.h"
#include "nn/value.h"

namespace metroplex::moe {

// Names of values (nn/value.h). T: tokens of this rank, s (/tp) * b, in the order of the rows of hidden_states; k:
// moe_router_topk; R: buffer rows for the local experts, at least the number received.

inline constexpr const char* kInput = "moe_input";              // [s (/tp), b, h]: output of the norm
inline constexpr const char* kTopExperts = "top_experts";       // [T, k] int64: chosen experts; -1: dropped
inline constexpr const char* kTopProbs = "top_probs";           // [T, k] at least fp32; 0 if dropped
inline constexpr const char* kRows = "expert_rows";             // [R, h]: grouped by local expert, then padding
inline constexpr const char* kRowProbs = "expert_row_probs";    // [R], of kTopProbs' type
inline constexpr const char* kRowCounts = "expert_row_counts";  // [local experts + slots] int64
inline constexpr const char* kReplicaOwners = "clone_owners";   // ReplicaPlan::owners
// Replica weights (ReplicaWeights of replicas.h) on ranks with replica slots; biases if the model has them.
inline constexpr const char* kReplicaWeight1 = "clone_fc1_weight";  // [slots, ffn (x 2), h]
inline constexpr const char* kReplicaWeight2 = "clone_fc2_weight";  // [slots, h, ffn]
inline constexpr const char* kReplicaBias1 = "clone_fc1_bias";      // [slots, ffn (x 2)]
inline constexpr const char* kReplicaBias2 = "clone_fc2_bias";      // [slots, h]
inline constexpr const char* kSharedOutput = "shared_output";       // [s (/tp), b, h], of the shared expert
// SharedExperts::Begun, if a graph ends between the two steps of the shared expert.
inline constexpr const char* kSharedProduct = "shared_fc1_output";  // [s, b, ffn / tp (x 2)]
inline constexpr const char* kSharedScore = "shared_gate_score";    // [s (/tp), b, 1]
inline constexpr const char* kRowOutput = "expert_output";          // [R, h]; partial sums over etp

// Add dispatch plans and replica weights to the values passed between segments. Undefined tensors and the table of a
// CombinePlan are not added.
void add_plan(nn::Values& values, const DispatchPlan& plan);
void add_plan(nn::Values& values, const CombinePlan& plan);
// These read them back. topk: moe_router_topk.
DispatchPlan dispatch_plan_in(const nn::Values& values, int64_t topk);
CombinePlan combine_plan_in(const nn::Values& values, int64_t topk);
void add_replicas(nn::Values& values, const ReplicaWeights& replicas);
ReplicaWeights replicas_in(const nn::Values& values);
// Returns `values` without those of the dispatch plan.
nn::Values without_dispatch_plan(const nn::Values& values);

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
  // Host-only state between dispatch and combine of a microbatch: rows between each pair of ranks.
  std::map<const nn::Microbatch*, RowTable> tables;
  // Replica weights in flight between dispatch and experts of a microbatch in one autograd region.
  std::map<const nn::Microbatch*, ClonesUnderWay> replicas;
};

void add_expert_segments(nn::Block& block, const std::shared_ptr<ExpertsLayer>& layer, const config::Model& model,
                         const nn::LayerContext& context);

}  // namespace metroplex::moe
