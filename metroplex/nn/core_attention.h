// softmax(q k^T / sqrt(d) + mask) v with dropout on the probabilities, as two halves without autograd. Where queries
// and keys lie in the sequence is data: a query sees the keys that are not behind it and in its document. Our own
// kernels do it (nn/blocked_attention.h), in memory linear in the lengths; on a GPU libtorch's (nn/fused_attention.h)
// what they can without a mask in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cuda/launch_point.h"
#include "nn/dropout.h"
#include "nn/microbatch.h"

namespace metroplex::nn {

struct CoreInputs {
  at::Tensor q, k, v;  // [s_q, b, n, d], [s_k, b, g, d] twice; any strides, last one 1
};
struct CoreSaved {
  CoreInputs in;
  at::Tensor out;  // [s_q, b, n, d] view of the result
  at::Tensor logsumexp;
};
struct CoreSpec {
  DropoutKey dropout;
  int64_t first_head = 0;
  Positions queries, keys;
  cuda::Target target;
};
// -> [s_q, b, n d]; hidden positions have probability 0, a row with nothing visible gives 0.
at::Tensor core_attention(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch, CoreSaved* saved);
CoreInputs core_attention_backward(const at::Tensor& dout, const CoreSpec& spec, const Microbatch& batch,
                                   const CoreSaved& saved);

}  // namespace metroplex::nn
