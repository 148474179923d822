// Tensors of heads in the product of a fused query, key and value projection (kernels/heads.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/launch_point.h"
#include "nn/rope.h"

namespace metroplex::nn {

// An RMSNorm of each head, before the rotation.
struct HeadNorm {
  at::Tensor weight;  // [head_dim]; undefined: not normalized
  double epsilon = 0;
  bool one_plus = false;
  at::Tensor rstd;  // [s, b, heads] in at least fp32; split_heads fills it if defined, join_heads reads it
};

// Heads of one kind.
struct FusedHeads {
  at::Tensor x;                   // [s, b, heads, head_dim]; of split_heads with a last stride of 1
  RopeTable::Angles angles = {};  // undefined: not rotated
  HeadNorm norm = {};             // head_dim is at most kernels::kMostNormedHead
  int64_t skipped = 0;            // heads per group that split_heads does not write; then x is undefined
};

// Overwrites all `to` with the heads of `fused` [s, b, width], in this order within each of `groups` groups, after
// their norm and rotation. Without autograd, as the next function.
void split_heads(const device::Target& target, const at::Tensor& fused, int64_t groups,
                 const std::vector<FusedHeads>& to);
// The gradient of split_heads [s, b, width].
struct JoinedHeads {
  at::Tensor fused;
  // Partial sums for accumulate_line_sums(): of the weight's gradient of each normalized kind [n, head_dim], and
  // without norms, if requested, of the rows of `fused` [n, width].
  std::vector<at::Tensor> lines;
};
struct JoinHeads {
  int64_t groups = 1;
  at::Tensor raw = {};     // with norms: `fused` of split_heads
  bool sums_rows = false;  // not with norms
};
JoinedHeads join_heads(const device::Target& target, const JoinHeads& how, std::vector<FusedHeads> from);

}  // namespace metroplex::nn
