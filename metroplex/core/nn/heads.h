// Tensors of heads in the product of a fused query, key and value projection (kernels/heads.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/launch_point.h"
#include "nn/rope.h"

namespace metroplex::nn {

// Heads of one kind.
struct FusedHeads {
  at::Tensor x;              // [s, b, heads, head_dim]; of split_heads with a last stride of 1
  RopeTable::Angles angles;  // undefined: not rotated
};

// Overwrites all `to` with the heads of `fused` [s, b, width], in this order within each of `groups` groups, and
// rotates them. Without autograd, as the next function.
void split_heads(const device::Target& target, const at::Tensor& fused, int64_t groups,
                 const std::vector<FusedHeads>& to);
// Returns the fused tensor [s, b, width] of `from`, which are rotated backward: the gradient of split_heads.
at::Tensor join_heads(const device::Target& target, int64_t groups, std::vector<FusedHeads> from);

}  // namespace metroplex::nn
