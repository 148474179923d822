// The arithmetic of routing, as functions on tensors: scores, the choice of experts, dropping, and the auxiliary
// losses' factor. Formulas are Megatron-LM's (core/transformer/moe/moe_utils.py). No function reads a value on the
// host, all shapes follow from those of the arguments, and logits are of at least fp32. T: tokens, E: experts, k:
// experts of a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/model.h"
#include "cuda/launch_point.h"

namespace metroplex::moe {

struct Routing {
  at::Tensor experts;  // [T, k] int64, no expert twice in a row; -1: dropped
  at::Tensor probs;    // [T, k] in the router's format, 0 where dropped; differentiable
};

struct TopKRule {
  int64_t k = 1;
  config::ScoreFunction score_function = config::ScoreFunction::softmax;
  bool pre_softmax = false;
  int64_t num_groups = 0, group_topk = 0;  // 0: no groups
  double scaling_factor = 0;               // 0: none
  int64_t group_score_topk = 0;            // 0: k / group_topk
  config::TopkNormalization normalization = config::TopkNormalization::automatic;
};
TopKRule topk_rule(const config::Model& model);

// [T, k] of scores [T, E], in descending order of the scores: the best k; with groups, of the group_topk groups whose
// sum of their best group_score_topk scores is largest. Without gradient.
at::Tensor choose(const at::Tensor& scores, const TopKRule& rule);
// The choice by scores + `bias` [E] (undefined: none; softmax has none) and the probabilities by the scores alone, in
// one kernel (cuda/kernels/route.h). With `chosen` [T, k] defined the choice is given. The order of a row is that of
// the choice; of equal scores the lower expert is better, unless there are groups.
struct Choice {
  at::Tensor bias, chosen;
};
Routing route(const cuda::Target& target, const at::Tensor& logits, const TopKRule& rule, const Choice& choice = {});
// Balanced by sinkhorn() in training; the probabilities are a sigmoid (k = 1) or a softmax over all experts. `chosen`
// likewise.
Routing route_by_sinkhorn(const cuda::Target& target, const at::Tensor& logits, int64_t k, bool training,
                          const at::Tensor& chosen = {});
// [T, E]: exp(logits) with rows and columns scaled in turns until all rows sum to 1 / T and all columns to 1 / E, up
// to a mean change of the columns' factors of `tolerance` (see cuda/kernels/route.h). Without gradient.
at::Tensor sinkhorn(const cuda::Target& target, const at::Tensor& logits, double tolerance = 1e-4);

// Keeps at most `capacity` tokens of every expert: those with the highest probability, of equal ones the first; or
// the first ones.
Routing drop(const Routing& routing, int64_t num_experts, int64_t capacity, config::DropPolicy policy);

// [E] int64: how often each expert occurs in `experts`; -1 is nobody. With `samples` > 1 token t belongs to sample t
// % samples, and the counts of each are for themselves: [samples, E].
at::Tensor tokens_per_expert(const at::Tensor& experts, int64_t num_experts, int64_t samples = 1);

// bias [E] += rate sign(mean of counts - count), counts [E] int64; compared as whole numbers.
void move_expert_bias(const at::Tensor& bias, const at::Tensor& counts, double rate);

// The factor of sum_e tokens_e P_e in the balancing loss over `tokens` tokens, tokens_e of them for expert e and P_e
// their scores of it: coefficient E / (k tokens^2).
double balance_factor(double coefficient, int64_t num_experts, int64_t k, double tokens);
}  // namespace metroplex::moe
