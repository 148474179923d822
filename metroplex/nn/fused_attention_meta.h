// The fused attention operators of libtorch on the meta device, for which it has none: results with the types, sizes
// and strides that the operator of the target's device gives, and on the way what that one allocates inside, made and
// dropped in its order. After libtorch 2.11's FlashAttentionKernel.cpp (CPU), flash_api.cpp and attention_backward.cu
// (GPU). Left out: what oneDNN takes inside a product, and what flash attention splits over keys where a microbatch
// is too small to fill a GPU.
#pragma once

#include <utility>

#include "nn/fused_attention.h"

namespace metroplex::nn {

// As fused_attention and fused_attention_backward; all tensors are meta.
std::pair<at::Tensor, at::Tensor> fused_attention_on_meta(const cuda::Target& target, const FusedInputs& in,
                                                          bool causal);
FusedGradients fused_attention_backward_on_meta(const cuda::Target& target, const FusedInputs& in,
                                                const FusedResult& result);

}  // namespace metroplex::nn
