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

// Returns the sums of logits [T, E] in fp64 [2 samples E + 2], see kernels::BalanceShape. `experts` [T, k]: the
// chosen experts; undefined: tokens are not counted. `mask`: undefined: 0.
at::Tensor balance_sums(const device::Target& target, const at::Tensor& logits, kernels::BalanceShape shape,
                        const at::Tensor& experts = {}, const at::Tensor& mask = {});
// Returns dlogits for the gradient dsums [samples E + 1] of the sums of scores and of logsumexp^2, times `scale` if
// defined.
at::Tensor balance_gradient(const device::Target& target, const at::Tensor& logits, const at::Tensor& dsums,
                            const at::Tensor& scale, const kernels::BalanceShape& shape);
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
  // Logits and their sums over this rank's tokens.
  struct Own {
    at::Tensor logits, sums;
    kernels::BalanceShape shape;
    // With several terms: differentiable [samples E + 1], so that their gradients are added before those of the
    // logits.
    at::Tensor scores = {};
  };
  at::Tensor make_scores(const Own& own) const;
  void add_global(const Own& own, const kernels::BalanceTerm& term, const at::Tensor& weight,
                  nn::SegmentContext& context);
  at::Tensor add_to_running(const at::Tensor& tokens) const;
  // Appends the term of the reduced `sums`.
  void add(nn::SegmentContext& context, const char* name, const Own& own, const at::Tensor& sums,
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
