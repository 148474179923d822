// What keeps the load of experts even: the auxiliary losses of a router as loss terms (nn/segment.h), with the running
// counts of the global one.
//
// A balancing loss is balance_factor times sum_e n_e P_e (moe/routing.h): n_e counted over the ranks that share the
// tokens, P_e this rank's, so each rank's gradient is its summand. The reported value is whole on every rank, divided by
// the number of cp ranks, whose values the step adds up. Backward enters terms with the factor of the microbatch's
// summed loss; the gradient of an auxiliary loss is to be that of its mean over microbatches, whatever tokens count,
// so a term is the loss times the sum of the loss mask (of one, at least), or, with losses per token, times all tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "config/model.h"
#include "moe/context.h"
#include "moe/routing.h"
#include "nn/layer_context.h"
#include "nn/segment.h"

namespace metroplex::moe {

// Coefficients; 0: off.
struct AuxiliaryCoefficients {
  double aux = 0, seq = 0, global = 0, z = 0;

  bool balances() const { return aux > 0 || seq > 0 || global > 0; }
};
// Of moe_router_load_balancing_type, moe_aux_loss_coeff and moe_z_loss_coeff. Throws base::Error where the two lists
// differ in length or hold a word that is none.
AuxiliaryCoefficients auxiliary_coefficients(const config::Model& model);

class AuxiliaryLosses {
 public:
  AuxiliaryLosses(const config::Model& model, const nn::LayerContext& context, const ExpertContext& experts);

  // Appends load_balancing_loss, seq_load_balancing_loss, global_load_balancing_loss and z_loss, as far as they are on,
  // to context.terms. logits [T, E], differentiable, of the samples' rows [s (/tp), samples]; `experts` is the choice
  // [T, k], where it is the best k by logits. Collective over tp_cp; the global loss's first forward over tp_dp_cp.
  void add_terms(const at::Tensor& logits, const at::Tensor& experts, int64_t samples, nn::SegmentContext& context);

 private:
  struct Sums;
  // The counts of the step so far, divided by the microbatches that they are of.
  struct Means {
    at::Tensor tokens;  // [E] double
    at::Tensor scores;  // [E] double, of all ranks; undefined where the forward is repeated
  };
  struct Live {
    at::Tensor batch, tokens;  // which microbatch, and its Means::tokens
  };

  at::Tensor weight(const Sums& sums, int64_t tokens) const;
  Means global_means(const at::Tensor& tokens, const at::Tensor& scores, const nn::SegmentContext& context);
  void add(nn::SegmentContext& context, const char* name, const at::Tensor& own, const at::Tensor& whole,
           const at::Tensor& weight) const;

  AuxiliaryCoefficients coefficients_;
  TopKRule rule_;
  int64_t num_experts_;
  bool per_token_;
  comm::Group tp_, cp_, tp_cp_, tp_dp_cp_;
  at::Tensor running_;      // [E + 1] double: counts and microbatches of step running_of_
  at::Tensor running_of_;   // [1] int64
  std::vector<Live> live_;  // microbatches whose forward will be repeated
};

}  // namespace metroplex::moe
