// Routing for tests and benchmarks that overrides the router. Experts are sampled uniformly or by Zipf's law, or
// tokens are assigned by the loads of a recorded run.
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

  // Sampling applies to training only.
  bool draws(const nn::Microbatch& batch) const { return draws_ && batch.training; }
  // Returns logits [T, E] for rows [s (/tp), samples] whose top k are k experts sampled without replacement. The n-th
  // expert of an order has a probability proportional to n^-skew (0: uniform). The order starts with expert 0 and
  // shifts by one expert every `period` steps. Gradients pass through to `logits`.
  at::Tensor draw(const at::Tensor& logits, int64_t samples, const nn::Microbatch& batch) const;

  bool deals(const nn::Microbatch& batch) const { return (turns_.defined() || !loads_.empty()) && batch.training; }
  // Returns [tokens, k] by deal_out() of an even load, or of dealt_counts() of this step's recorded load, cyclically.
  at::Tensor deal(int64_t tokens, int64_t k, const nn::Microbatch& batch);

 private:
  at::Tensor even_counts(int64_t tokens, int64_t k, const nn::Microbatch& batch) const;
  at::Tensor log_weights(const nn::Microbatch& batch, const at::TensorOptions& options) const;

  bool draws_;
  double skew_;
  int64_t period_, num_experts_;
  RowNoise noise_;
  device::Target target_;
  // [E] int64: position of each expert in the round-robin order that distributes the remainder of an even load. The
  // order takes one expert of each ep rank in turn. If undefined, the load is not even.
  at::Tensor turns_;
  int64_t parts_ = 1, part_ = 0;             // number of ranks that share a microbatch, and index of this one
  std::vector<std::vector<int64_t>> loads_;  // by step
  at::Tensor counts_;                        // [steps, E], for dealt_tokens_ tokens
  int64_t dealt_tokens_ = 0;
};

// Routing by given loads: each token gets k different experts, and each expert gets its given number of tokens.

// Returns how many of `tokens` tokens with k experts each go to every expert. If `loads` sum to tokens k and none
// exceeds `tokens`, they are returned unchanged. Otherwise counts are proportional to loads, at most `tokens`,
// rounded by largest remainder (ties: lowest expert first). The excess of an expert over `tokens` is distributed to
// the others. Loads must be >= 0, and k at most their number.
std::vector<int64_t> dealt_counts(const std::vector<int64_t>& loads, int64_t tokens, int64_t k);

// Returns [tokens, k] int64 for counts [E] int64 that sum to tokens k, none above `tokens`. Experts are laid out in
// order, each repeated by its count; token t takes positions t, t + tokens, t + 2 tokens, ... No token gets an expert
// twice. The host reads no counts.
at::Tensor deal_out(const at::Tensor& counts, int64_t tokens, int64_t k);

}  // namespace metroplex::moe
