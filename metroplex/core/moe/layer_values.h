// The values that the segments of a layer with experts pass on, as one struct. Autograd regions and stage borders
// need a list of named tensors (nn/value.h), so segments convert with to_values() and from_values().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "moe/dispatcher.h"
#include "moe/routing.h"
#include "moe/shared_experts.h"
#include "nn/value.h"

namespace metroplex::moe {

// Names that observers of values use.
inline constexpr const char* kTopExperts = "top_experts";
inline constexpr const char* kTopProbs = "top_probs";
inline constexpr const char* kRowCounts = "expert_row_counts";
inline constexpr const char* kRowOutput = "expert_output";

// Host state between the segments of a microbatch.
struct DispatchState final : nn::HostState {
  RowTable table;           // between dispatch and combine: rows between each pair of ranks
  ClonesUnderWay replicas;  // replica weights in flight between dispatch and experts in one autograd region
};

// Every segment sets the fields that it computes and resets those that no later segment reads. Undefined tensors are
// not passed on.
struct LayerValues {
  nn::Value residual = {};  // [s (/tp), b, h]
  nn::Value input = {};     // [s (/tp), b, h]: output of the norm
  Routing routing = {};     // [T, k]: chosen experts and probabilities of this rank's T = s (/tp) b tokens
  SharedExperts::Begun shared_begun = {};  // if a graph ends between the two steps of the shared expert
  at::Tensor shared_output = {};           // [s (/tp), b, h]
  DispatchPlan plan = {};                  // replicas.owners is kept until the experts have run
  ReplicaWeights replicas = {};            // on ranks with replica slots
  CombinePlan back = {};                   // without `table`, which is in `state`
  ExpertRows rows = {};
  at::Tensor row_output = {};  // [R, expert_row_width]; partial sums over etp
  std::shared_ptr<DispatchState> state = {};
};

nn::Values to_values(const LayerValues& layer);
// topk: model.moe_router_topk.
LayerValues from_values(const nn::Values& values, int64_t topk);

}  // namespace metroplex::moe
