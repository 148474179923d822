// libtorch's fused attention operators for GPUs behind one interface; config/attention.h says which of them takes
// what. Without autograd. A recorder is told 2 b heads s_q s_k (d + dv) FLOPs for forward, half of that with a causal
// mask (as plan/model_flops.h counts), what a window leaves of it, and 2 b heads s_q s_k (3 d + 2 dv) likewise for
// backward, which recomputes the scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "config/attention.h"
#include "cuda/launch_point.h"

namespace metroplex::nn {

// Tensors are [b, heads, s, d] of any strides, the last one 1; k and v may have fewer heads, which divide those of q.
struct FusedInputs {
  at::Tensor q, k, v;
};

// Pairs of a query and a key that it sees among `rows` positions in order, of those within `window`.
double causal_pairs(double rows, int64_t window);

// [n + 1] integers each, of the same n documents: where they begin among the rows of all samples, and where those
// end. A document may have no rows of either.
struct DocumentRows {
  at::Tensor queries, keys;
};

struct FusedSpec {
  config::AttentionBy by = config::AttentionBy::flash;  // none of our own
  bool causal = false;  // as many queries as keys: query i attends to keys 0 to i; else to every key
  double softmax_scale = 0;
  // Of flash attention alone:
  // Query i sees no keys before i + s_k - s_q - window; -1: all. Of a document's own queries and keys, counted in it.
  // Without a causal mask all s_q <= s_k: the operator hides keys from i + s_k - s_q + all s_k + 1 on.
  int64_t window = -1;
  DocumentRows documents = {};  // it sees keys of its own document; undefined: there are none
};
// softmax(softmax_scale q k^T) v, and the logsumexp of the scaled scores for backward, [b, heads, s_q] of any strides
// (memory-efficient attention: with room behind s_q); 0 and -inf of a query whose document has no keys here. Nothing
// is read on the host: of documents the operator is told their number, empty ones among them, and s_q and s_k as the
// longest.
std::pair<at::Tensor, at::Tensor> fused_attention(const cuda::Target& target, const FusedInputs& in,
                                                  const FusedSpec& spec);

struct FusedResult {
  at::Tensor out, logsumexp, dout;
};
using FusedGradients = FusedInputs;
FusedGradients fused_attention_backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& result,
                                        const FusedSpec& spec);

// The fused GPU attention operators on the meta device, for which libtorch has no kernels: results with the types,
// sizes and strides of the real ones, and their internal allocations, made and freed in the same order, for the
// memory prediction. After libtorch 2.11's flash_api.cpp, attention_backward.cu and MHA.cpp. Not modelled: flash
// attention's split over keys where a microbatch is too small to fill a GPU; of cuDNN's workspace, which it alone
// knows, the gradient of the queries in fp32.

// As fused_attention and fused_attention_backward; all tensors are meta. Those of flash attention are [b, s, heads,
// d] or, with `documents` offsets, [all rows, heads, d], as the operator has them.
std::pair<at::Tensor, at::Tensor> flash_on_meta(const FusedInputs& in);
FusedGradients flash_backward_on_meta(const FusedInputs& in, const FusedResult& result, const at::Tensor& documents);
std::pair<at::Tensor, at::Tensor> cudnn_on_meta(const FusedInputs& in);
FusedGradients cudnn_backward_on_meta(const FusedInputs& in, const FusedResult& result);
std::pair<at::Tensor, at::Tensor> efficient_on_meta(const FusedInputs& in);
FusedGradients efficient_backward_on_meta(const FusedInputs& in, const FusedResult& result);

}  // namespace metroplex::nn
