// The fused attention operators of a GPU on the meta device, for which libtorch has none: results with the types,
// sizes and strides that they give, and on the way what they allocate inside, made and dropped in their order. After
// libtorch 2.11's flash_api.cpp and attention_backward.cu. Left out: what flash attention splits over keys where a
// microbatch is too small to fill a GPU.
#pragma once

#include <utility>

#include "nn/fused_attention.h"

namespace metroplex::nn {

// As fused_attention and fused_attention_backward; all tensors are meta.
std::pair<at::Tensor, at::Tensor> fused_attention_on_meta(const FusedInputs& in);
FusedGradients fused_attention_backward_on_meta(const FusedInputs& in, const FusedResult& result);

}  // namespace metroplex::nn
