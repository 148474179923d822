#include "moe/layer_values.h"

namespace metroplex::moe {
namespace {

// Calls visit(name, value) for every field. Values are nn::Value or at::Tensor.
template <class Layer, class Visitor>
void visit_fields(Layer& layer, const Visitor& visit) {
  visit(nn::kHiddenStates, layer.residual);
  visit("moe_input", layer.input);
  visit(kTopExperts, layer.routing.experts);
  visit(kTopProbs, layer.routing.probs);
  visit("shared_fc1_output", layer.shared_begun.product);
  visit("shared_gate_score", layer.shared_begun.score);
  visit("shared_output", layer.shared_output);
  visit("dispatch_plan_rows", layer.plan.permutation.rows);
  visit("dispatch_plan_source", layer.plan.permutation.source);
  visit("dispatch_plan_counts", layer.plan.permutation.counts);
  visit("dispatch_rank_counts", layer.plan.rank_counts);
  visit("replica_owners", layer.plan.replicas.owners);
  visit("replica_fc1_weight", layer.replicas.fc1);
  visit("replica_fc2_weight", layer.replicas.fc2);
  visit("replica_fc1_bias", layer.replicas.bias1);
  visit("replica_fc2_bias", layer.replicas.bias2);
  visit("combine_rows", layer.back.permutation.rows);
  visit("combine_source", layer.back.permutation.source);
  visit("combine_regroup_rows", layer.back.regroup.rows);
  visit("combine_regroup_source", layer.back.regroup.source);
  visit("combine_sent", layer.back.sent);
  visit("combine_received", layer.back.came);
  visit("expert_rows", layer.rows.x);
  visit("expert_row_probs", layer.rows.probs);
  visit(kRowCounts, layer.rows.counts);
  visit(kRowOutput, layer.row_output);
}

}  // namespace

nn::Values to_values(const LayerValues& layer) {
  nn::Values values;
  values.host = layer.state;
  visit_fields(layer, [&](const char* name, const auto& value) {
    if (value.defined()) values.add(name, value);
  });
  return values;
}

LayerValues from_values(const nn::Values& values, int64_t topk) {
  LayerValues layer;
  layer.state = std::dynamic_pointer_cast<DispatchState>(values.host);
  visit_fields(layer, [&](const char* name, auto& value) {
    if (!values.has(name)) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, nn::Value>) value = values.at(name);
    else value = values.tensor(name);
  });
  layer.plan.permutation.divisor = topk;
  layer.back.permutation.divisor = topk;
  return layer;
}

}  // namespace metroplex::moe
