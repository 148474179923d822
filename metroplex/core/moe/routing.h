// Tensor functions for routing: scores, expert choice, dropping, and the factor of auxiliary losses. Formulas are
// Megatron-LM's (core/transformer/moe/moe_utils.py). No function reads values on the host, all shapes follow from the
// arguments' shapes, and logits are at least fp32. T: tokens, E: experts, k: experts per token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/model.h"
#include "device/launch_point.h"

namespace metroplex::moe {

struct Routing {
  at::Tensor experts;  // [T, k] int64, no expert twice in a row; -1: dropped
  at::Tensor probs;    // [T, k] in the router's type, 0 if dropped; differentiable
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

// Returns the k best experts [T, k] by scores [T, E], in descending order of score. With groups, only experts of the
// group_topk groups with the largest sum of their best group_score_topk scores are eligible. Without gradient.
at::Tensor choose(const at::Tensor& scores, const TopKRule& rule);
// Chooses by scores + `bias` [E] (undefined: none; with softmax, the scores are those over all experts) and computes
// probabilities from the scores alone, in one kernel (kernels/route.h). If `chosen` [T, k] is defined, it is the
// choice. The order of a row is that of the choice. Ties prefer the lower expert, unless there are groups.
struct Choice {
  at::Tensor bias, chosen;
};
Routing route(const device::Target& target, const at::Tensor& logits, const TopKRule& rule,
              const Choice& choice = {});
// In training the choice is balanced by sinkhorn(). The probabilities are a sigmoid (k = 1) or a softmax over all
// experts. `chosen` as in Choice.
Routing route_by_sinkhorn(const device::Target& target, const at::Tensor& logits, int64_t k, bool training,
                          const at::Tensor& chosen = {});
// Returns [T, E]: exp(logits) with rows and columns scaled alternately until rows sum to 1 / T and columns to 1 / E.
// It stops when the mean change of the column factors is below `tolerance` (see kernels/route.h). Without
// gradient.
at::Tensor sinkhorn(const device::Target& target, const at::Tensor& logits, double tolerance = 1e-4);

// Keeps at most `capacity` tokens of every expert: those with the highest probability (ties: first token), or the
// first ones, according to `policy`.
Routing drop(const Routing& routing, int64_t num_experts, int64_t capacity, config::DropPolicy policy);

// Returns [E] int64, the occurrences of each expert in `experts`; -1 is not counted. With `samples` > 1, token t
// belongs to sample t % samples, and counts are per sample, [samples, E].
at::Tensor tokens_per_expert(const at::Tensor& experts, int64_t num_experts, int64_t samples = 1);

// bias [E] += rate sign(mean of counts - count), counts [E] int64; exact integer comparison.
void move_expert_bias(const at::Tensor& bias, const at::Tensor& counts, double rate);

// Returns the factor of sum_e tokens_e P_e in the balancing loss over `tokens` tokens: coefficient E / (k tokens^2).
// tokens_e are the tokens of expert e, P_e the sum of their scores.
double balance_factor(double coefficient, int64_t num_experts, int64_t k, double tokens);
}  // namespace metroplex::moe
