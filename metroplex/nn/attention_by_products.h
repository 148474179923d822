// Core attention on a GPU where no fused operator of libtorch takes the case (dropout, capped scores, masks of chosen
// rows): batched products of the library with the softmax by a kernel of ours between them
// (cuda/kernels/attention_scores.h), a chunk of queries at a time. Every mask, head size and type of
// nn/blocked_attention.h. Scores of a chunk are in memory in at least fp32, kScoreBytes of them or those of 16
// queries of a group of heads; backward makes them again. Keys that all queries of a chunk are before, or too far
// behind, are left out where rows are neighbours. Sums are the same in every run. A recorder is told each product and
// its FLOPs as they are computed.
#pragma once

#include "nn/core_attention.h"

namespace metroplex::nn {

constexpr int64_t kScoreBytes = int64_t{128} << 20;

// out without gaps; logsumexp [b, n, s_q] in at least fp32.
CoreResult attention_by_products(const CoreInputs& in, const CoreCall& call, int64_t score_bytes = kScoreBytes);
// dout [s_q, b, n, dv], any strides.
CoreInputs attention_by_products_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                          const CoreCall& call, int64_t score_bytes = kScoreBytes);

}  // namespace metroplex::nn
