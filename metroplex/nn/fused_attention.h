// The fused attention operators of libtorch for GPUs, one interface over types: flash attention for half types, the
// memory-efficient one for fp32, and none for fp64. Without autograd. A recorder
// is told 4 b heads s_q s_k d FLOPs forward, half of that where the mask is causal (as sim/flops.h counts), and 5/2
// of it backward, which makes the scores again: 5 products for 2.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "cuda/launch_point.h"

namespace metroplex::nn {

// Tensors are [b, heads, s, d] of any strides, the last one 1; k and v may have fewer heads, which divide those of q.
struct FusedInputs {
  at::Tensor q, k, v;
};
// Whether a GPU has an operator for heads of this type and size.
bool fused_on_gpu(const at::Tensor& q);

// softmax(q k^T / sqrt(d)) v, and the logarithms of the sums, for backward. `causal`: query i sees keys 0 to i, as
// many queries as keys; else every key.
std::pair<at::Tensor, at::Tensor> fused_attention(const cuda::Target& target, const FusedInputs& in, bool causal);

struct FusedResult {
  at::Tensor out, logsumexp, dout;
};
using FusedGradients = FusedInputs;
FusedGradients fused_attention_backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& result,
                                        bool causal);

}  // namespace metroplex::nn
