// libtorch's fused attention operators for GPUs behind one interface: flash attention for half types, the
// memory-efficient one for fp32, none for fp64; for equal head sizes of q, k and v only. Without autograd. A recorder
// is told 4 b heads s_q s_k d FLOPs for forward, half of that with a causal mask (as plan/model_flops.h counts), and
// 5/2 of it for backward, which recomputes the scores: five products for forward's two.
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

struct FusedSpec {
  bool causal = false;  // as many queries as keys: query i attends to keys 0 to i; else to every key
  double softmax_scale = 0;
};
// softmax(softmax_scale q k^T) v, and the logsumexp of the scaled scores for backward.
std::pair<at::Tensor, at::Tensor> fused_attention(const cuda::Target& target, const FusedInputs& in,
                                                  const FusedSpec& spec);

struct FusedResult {
  at::Tensor out, logsumexp, dout;
};
using FusedGradients = FusedInputs;
FusedGradients fused_attention_backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& result,
                                        const FusedSpec& spec);

// The fused GPU attention operators on the meta device, for which libtorch has no kernels: results with the types,
// sizes and strides of the real ones, and their internal allocations, made and freed in the same order, for the
// memory prediction. After libtorch 2.11's flash_api.cpp and attention_backward.cu. Not modelled: flash attention's
// split over keys where a microbatch is too small to fill a GPU.

// As fused_attention and fused_attention_backward; all tensors are meta.
std::pair<at::Tensor, at::Tensor> fused_attention_on_meta(const FusedInputs& in);
FusedGradients fused_attention_backward_on_meta(const FusedInputs& in, const FusedResult& result);

}  // namespace metroplex::nn
