// Core attention on a GPU for cases that no fused operator of libtorch supports: dropout, capped scores, masks over
// arbitrary positions. It consists of batched matrix products and a softmax kernel between them
// (kernels/attention_scores.h), for a chunk of queries at a time. Supports every mask, head size and type of
// nn/blocked_attention.h.
// Scores of a chunk are stored in at least fp32. They take up to kScoreBytes, or the size of 16 queries of one group
// of heads if that is more. Backward recomputes them. Keys that are masked for all queries of a chunk are skipped if
// positions are contiguous. Sums have the same bits in every run. Each product is reported to the recorder with its
// FLOPs.
#pragma once

#include "nn/core_attention.h"

namespace metroplex::nn {

constexpr int64_t kScoreBytes = int64_t{128} << 20;

// Returns `out` contiguous and `logsumexp` [b, n, s_q] in at least fp32.
CoreResult attention_by_products(const CoreInputs& in, const CoreCall& call, int64_t score_bytes = kScoreBytes);
// dout [s_q, b, n, dv] may have any strides.
CoreInputs attention_by_products_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                          const CoreCall& call, int64_t score_bytes = kScoreBytes);

}  // namespace metroplex::nn
