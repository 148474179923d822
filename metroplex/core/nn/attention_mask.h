// Converts the mask of core attention to the form that our own attention kernels take.
#pragma once

#include "kernels/attention_shape.h"
#include "nn/core_attention.h"

namespace metroplex::nn {

struct AttentionMask {
  kernels::AttentionShape shape;
  DropoutMask dropout;  // owns, with `documents`, the memory that pointers in `shape` refer to
  at::Tensor documents;
};
AttentionMask attention_mask(const CoreInputs& in, const CoreCall& call);

// Returns whether queries and keys have the same contiguous positions. The causal mask then hides half of the
// pairs.
bool is_plain_causal(const CoreInputs& in, const CorePositions& positions);

// Estimates the FLOPs over unmasked pairs, without regard to documents. `num_qk` products use the head size of q and
// k; `num_v` products use the head size of v.
double attention_flops(const CoreInputs& in, const CoreCall& call, int64_t num_qk, int64_t num_v);

// Returns the kernel operand for x [s, b, heads, d]. The last stride must be 1.
template <class T>
kernels::AttentionOperand<T> attention_operand(const at::Tensor& x) {
  MPX_ASSERT(x.stride(3) == 1 || x.size(3) <= 1, "kernels of attention need a last stride of 1");
  return {elements<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace metroplex::nn
