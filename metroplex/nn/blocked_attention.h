// Core attention by our own kernels, block by block (cuda/kernels/blocked_attention.h): every mask that CoreSpec and
// Microbatch can say, dropout, any number of heads a group; memory linear in the lengths. A recorder is told what
// fused_attention tells; which pairs documents hide the host does not know.
#pragma once

#include <utility>

#include "nn/core_attention.h"

namespace metroplex::nn {

// Whether queries and keys are the same rows in order: half of the pairs are hidden.
bool plain_causal(const CoreInputs& in, const CoreSpec& spec);

// [s_q, b, n, d] without gaps, and the logarithms of the sums [b, n, s_q] in at least fp32.
std::pair<at::Tensor, at::Tensor> blocked_attention(const CoreInputs& in, const CoreSpec& spec,
                                                    const Microbatch& batch);
// Of `saved`: in, out, logsumexp. dout like out, of any strides.
CoreInputs blocked_attention_backward(const at::Tensor& dout, const CoreSpec& spec, const Microbatch& batch,
                                      const CoreSaved& saved);

}  // namespace metroplex::nn
