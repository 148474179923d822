// Core attention on a CPU, block by block (kernels/blocked_attention.h). Supports every mask that CorePositions
// and Microbatch can express, dropout, any number of query heads per group, and values with their own head size.
// Memory is linear in the sequence lengths. The recorder gets the FLOPs defined in fused_attention.h, each product
// with its own head size. Document masks are on the device, so their savings are not subtracted.
#pragma once

#include "nn/core_attention.h"

namespace metroplex::nn {

// Returns `out` contiguous and `logsumexp` [b, n, s_q] in at least fp32.
CoreResult blocked_attention(const CoreInputs& in, const CoreCall& call);
// dout [s_q, b, n, dv] may have any strides.
CoreInputs blocked_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call);

}  // namespace metroplex::nn
