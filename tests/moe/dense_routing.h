// Megatron-LM's dense representation of a routing: a number or a bool for every token and expert.
#pragma once

#include <ATen/ops/zeros.h>

#include "moe/routing.h"

namespace metroplex::moe {

// [T, E] of probabilities (differentiable), 0 elsewhere, and bool.
inline at::Tensor dense_probs(const Routing& routing, int64_t num_experts) {
  const at::Tensor places = routing.experts + 1;
  return at::zeros({places.size(0), num_experts + 1}, routing.probs.options())
      .scatter(1, places, routing.probs)
      .narrow(1, 1, num_experts);
}

inline at::Tensor dense_map(const at::Tensor& experts, int64_t num_experts) {
  return at::zeros({experts.size(0), num_experts + 1}, experts.options().dtype(at::kBool))
      .scatter_(1, experts + 1, true)
      .narrow(1, 1, num_experts);
}

// For each column of the bool map [T, E], sets the first zeros until the number of ones is a multiple of `multiple`.
// Stops if no zeros are left.
inline at::Tensor padded_map(const at::Tensor& map, int64_t multiple) {
  const at::Tensor missing = map.sum(0).neg().remainder(multiple), zeros = map.eq(false);
  return map.bitwise_or(zeros.bitwise_and(zeros.cumsum(0).le(missing)));
}

}  // namespace metroplex::moe
