// Routing for tests and benchmarks, whatever the router says: experts are drawn, all alike or by Zipf's law.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/model.h"
#include "moe/noise.h"
#include "nn/layer_context.h"

namespace metroplex::moe {

class ForcedRouting {
 public:
  ForcedRouting(int64_t layer, const config::Model& model, const nn::LayerContext& context);

  // Outside of training the router is left alone.
  bool draws(const nn::Microbatch& batch) const { return draws_ && batch.training; }
  // Logits [T, E] of the rows [s (/tp), samples], whose best k are k experts drawn without replacement, the n-th of
  // the order with a probability in proportion to n^-skew (0: all alike). The order begins with expert 0 and moves on
  // by one every `period` steps. Gradients pass through to `logits`.
  at::Tensor draw(const at::Tensor& logits, int64_t samples, const nn::Microbatch& batch) const;

 private:
  at::Tensor log_weights(const nn::Microbatch& batch, const at::TensorOptions& options) const;

  bool draws_;
  double skew_;
  int64_t period_, num_experts_;
  RowNoise noise_;
};

}  // namespace metroplex::moe
