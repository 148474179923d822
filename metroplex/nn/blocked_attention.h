// Core attention on a CPU, block by block (cuda/kernels/blocked_attention.h): every mask that CorePositions and
// Microbatch can express, dropout, any number of query heads per group, values of another head size; memory linear in
// the lengths. The FLOPs told to a recorder are those of fused_attention.h, each product with the head size
// that it has: document masks are on the device, so what they save is not subtracted.
#pragma once

#include "nn/core_attention.h"

namespace metroplex::nn {

// out without gaps; logsumexp [b, n, s_q] in at least fp32.
CoreResult blocked_attention(const CoreInputs& in, const CoreCall& call);
// dout [s_q, b, n, dv], any strides.
CoreInputs blocked_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call);

}  // namespace metroplex::nn
