// Auxiliary load-balancing losses of a router as loss terms (nn/segment.h), with the running counts of the global
// one.
//
// A balancing loss is balance_factor() times sum_e n_e P_e (moe/routing.h). n_e are the tokens of all ranks, P_e the
// scores of this rank's tokens, so each rank has a partial sum of the gradient. A term reports the full sum on every
// rank, divided by the number of cp ranks: the step adds the values of the cp ranks.
//
// Backward enters a term with the factor of the microbatch's summed loss. The gradient of an auxiliary loss must be
// that of its mean over microbatches, however many tokens count. So the term is the loss times the sum of the loss
// mask (at least 1). If losses are averaged over tokens, it is the loss times the microbatch's tokens, as in
// Megatron-LM.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/group.h"
#include "config/model.h"
#include "kernels/balance.h"
#include "device/launch_point.h"
#include "moe/context.h"
#include "moe/routing.h"
#include "nn/layer_context.h"
#include "nn/segment.h"

namespace metroplex::moe {

// Sums of logits [T, E] in fp64, see kernels::BalanceShape.
struct BalanceSums {
  // [2 samples E + 2]: tokens and normalized scores (those of a token sum to 1) of each sample and expert,
  // logsumexp^2, and one element for the caller.
  at::Tensor all;
  at::Tensor scores;  // [samples E + 1]: the scores and logsumexp^2 in `all`, differentiable
};
// `experts` [T, k]: the chosen experts; undefined: tokens are not counted.
BalanceSums balance_sums(const device::Target& target, const at::Tensor& logits, kernels::BalanceShape shape,
                         const at::Tensor& experts = {});
kernels::BalanceScore balance_score(config::ScoreFunction function);

class AuxiliaryLosses {
 public:
  AuxiliaryLosses(const config::Model& model, const nn::LayerContext& context, const ExpertContext& experts);

  bool any() const { return balances() || z_ > 0; }
  // Appends load_balancing_loss, seq_load_balancing_loss, global_load_balancing_loss and z_loss to context.terms, if
  // their coefficients are set. logits [T, E], differentiable; token t belongs to sample t % samples. `experts` [T,
  // k] is the router's choice if it depends on the logits alone, else undefined. Collective over tp_cp. With the
  // global loss, a forward that is not a recomputation is also collective over tp_dp_cp.
  void add_terms(const at::Tensor& logits, const at::Tensor& experts, int64_t samples, nn::SegmentContext& context);
  // Only for the global loss, [E + 1] fp64: tokens of each expert in the step's microbatches so far, and their
  // number.
  const at::Tensor& running() const { return running_; }

 private:
  bool balances() const { return aux_ > 0 || seq_ > 0 || global_ > 0; }
  BalanceSums own_sums(const at::Tensor& logits, const at::Tensor& experts, const kernels::BalanceShape& shape,
                       const nn::Microbatch& batch) const;
  void add_global(const BalanceSums& own, const kernels::BalanceTerm& term, const at::Tensor& weight,
                  nn::SegmentContext& context);
  at::Tensor add_to_running(const at::Tensor& tokens) const;
  // Appends the term of the reduced sums `all`.
  void add(nn::SegmentContext& context, const char* name, const BalanceSums& own, const at::Tensor& all,
           const at::Tensor& weight, const kernels::BalanceTerm& term) const;

  double aux_ = 0, seq_ = 0, global_ = 0, z_ = 0;  // coefficients; 0: off
  TopKRule rule_;
  int64_t num_experts_;
  bool per_token_;
  device::Target target_;
  comm::Group tp_, cp_, tp_cp_, tp_dp_cp_;
  at::Tensor running_;
};

}  // namespace metroplex::moe
