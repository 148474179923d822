// Routing for tests and benchmarks, whatever the router says: experts are drawn, all alike or by Zipf's law, or
// tokens are dealt out by the loads of a recorded run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "config/model.h"
#include "moe/context.h"
#include "moe/noise.h"
#include "nn/layer_context.h"

namespace metroplex::moe {

class ForcedRouting {
 public:
  ForcedRouting(int64_t layer, const config::Model& model, const nn::LayerContext& context,
                const ExpertContext& experts = {});

  // Outside of training the router is left alone.
  bool draws(const nn::Microbatch& batch) const { return draws_ && batch.training; }
  // Logits [T, E] of the rows [s (/tp), samples], whose best k are k experts drawn without replacement, the n-th of
  // the order with a probability in proportion to n^-skew (0: all alike). The order begins with expert 0 and moves on
  // by one every `period` steps. Gradients pass through to `logits`.
  at::Tensor draw(const at::Tensor& logits, int64_t samples, const nn::Microbatch& batch) const;

  bool deals(const nn::Microbatch& batch) const { return (turns_.defined() || !loads_.empty()) && batch.training; }
  // Returns [tokens, k] by deal_out() of an even load, or of dealt_counts() of this step's recorded load, in a cycle.
  at::Tensor deal(int64_t tokens, int64_t k, const nn::Microbatch& batch);

 private:
  at::Tensor even_counts(int64_t tokens, int64_t k, const nn::Microbatch& batch) const;
  at::Tensor log_weights(const nn::Microbatch& batch, const at::TensorOptions& options) const;

  bool draws_;
  double skew_;
  int64_t period_, num_experts_;
  RowNoise noise_;
  cuda::Target target_;
  // [E] int64: the place of each expert in the order that remainders of an even load go round. It takes an expert of
  // each rank of ep in turn. Undefined: the load is not even.
  at::Tensor turns_;
  int64_t parts_ = 1, part_ = 0;             // ranks with tokens of a microbatch, and the index of this one
  std::vector<std::vector<int64_t>> loads_;  // by step
  at::Tensor counts_;                        // [steps, E] of dealt_tokens_ tokens
  int64_t dealt_tokens_ = 0;
};

// Routing by given loads: every token gets k different experts, and every expert the tokens that it is to have.

// How many of `tokens` tokens with k experts each go to every expert: `loads` themselves where they add up to tokens
// k and none is above `tokens`. Else in proportion to them, none above `tokens`, rounded by the largest remainder (of
// equal ones the lowest expert); what experts with a load cannot take, the others share. Loads are at least 0, k at
// most their number.
std::vector<int64_t> dealt_counts(const std::vector<int64_t>& loads, int64_t tokens, int64_t k);

// [tokens, k] int64 of counts [E] int64 that add up to tokens k, none above `tokens`: of the experts laid out one
// behind the other, each as often as it counts, token t takes places t, t + tokens, t + 2 tokens, ... No expert comes
// twice. Counts are read where they lie.
at::Tensor deal_out(const at::Tensor& counts, int64_t tokens, int64_t k);

}  // namespace metroplex::moe
