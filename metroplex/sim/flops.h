// Floating-point operations of a training step by formula, as Megatron counts them (num_floating_point_operations):
// matrix products only, two operations a multiply-add, backward twice the forward, half of the causal score matrix.
// Throughput in TFLOP/s per GPU is flops / (iteration seconds * 1e12 * ranks).
#pragma once

#include <cstdint>
#include <optional>

#include "sim/model_shape.h"

namespace metroplex::sim {

struct StepTokens {
  int64_t batch_size = 1;  // global batch, in sequences
  // Of packed or short sequences: tokens that are not padding (else batch_size * seq_length) and the sum over
  // documents of length^2 (else batch_size * seq_length^2).
  std::optional<double> num_tokens = std::nullopt;
  std::optional<double> squared_length_sum = std::nullopt;
};

// Forward and backward of one global batch.
double step_flops(const ModelShape& shape, const StepTokens& tokens);

// The same network where every token goes to all experts of a layer: what the operations would be if all parameters
// took part.
ModelShape with_all_experts(ModelShape shape);
// Parameters of experts that a token does not visit, over all layers: all parameters without these are active.
int64_t idle_parameters(const ModelShape& shape);

}  // namespace metroplex::sim
