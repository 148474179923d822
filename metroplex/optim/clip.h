// Global gradient norm and clipping over all model-parallel ranks. Sharded parameters count on every rank, replicated
// ones on the first tensor-parallel rank, the tied copy of the embedding not at all.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "nn/param.h"

namespace metroplex::optim {

struct GradientStats {
  double norm = 0;         // l2 over the whole model
  int64_t num_zeros = -1;  // of real (unpadded) elements; -1 when not asked for
};

// Collective over `model_parallel`; every member gets the same bits. main_grad must be final (reduced over dp).
GradientStats gradient_stats(const std::vector<nn::Param*>& params, const comm::Group& tp,
                             const comm::Group& model_parallel, bool with_zeros);

// l2 norm of the parameters, counted the same way.
double params_norm(const std::vector<nn::Param*>& params, const comm::Group& tp, const comm::Group& model_parallel);

// max_norm / (norm + 1e-6) when that is below 1, else 1 (Megatron's clip_grad_by_total_norm).
double clip_coefficient(double norm, double max_norm);

}  // namespace metroplex::optim
