// The mask of core attention as kernels take it, for those who compute attention by kernels of our own.
#pragma once

#include "cuda/kernels/attention_shape.h"
#include "nn/core_attention.h"

namespace metroplex::nn {

struct AttentionMask {
  cuda::kernels::AttentionShape shape;
  DropoutMask dropout;  // what the pointers of `shape` point to
  at::Tensor documents;
};
AttentionMask attention_mask(const CoreInputs& in, const CoreCall& call);

// Whether queries and keys are the same positions in order, so that the causal mask hides half of the pairs.
bool plain_causal(const CoreInputs& in, const CorePositions& positions);

// Of products over the pairs that are not masked: `of_qk` with the head size of q and k, `of_v` with that of v.
double attention_flops(const CoreInputs& in, const CoreCall& call, int64_t of_qk, int64_t of_v);

// [s, b, heads, d], last stride 1.
template <class T>
cuda::kernels::AttentionOperand<T> attention_operand(const at::Tensor& x) {
  MPX_ASSERT(x.stride(3) == 1 || x.size(3) <= 1, "kernels of attention need a last stride of 1");
  return {elements<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace metroplex::nn
