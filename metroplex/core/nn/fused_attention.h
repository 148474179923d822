// One interface to libtorch's fused GPU attention operators; config/attention.h lists the cases that each supports.
// Without autograd. The recorder gets 2 b heads s_q s_k (d + dv) FLOPs for forward. A causal mask halves them (as in
// plan/model_flops.h); with a window only visible pairs count. Backward recomputes the scores and counts 2 b heads
// s_q s_k (3 d + 2 dv) with the same rules.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "config/attention.h"
#include "device/launch_point.h"

namespace metroplex::nn {

// Tensors [b, heads, s, d] with any strides and a last stride of 1. The heads of k and v divide those of q.
struct FusedInputs {
  at::Tensor q, k, v;
};

// Number of visible (query, key) pairs among `rows` consecutive positions, with a causal mask and a window.
double causal_pairs(double rows, int64_t window);

// Offsets of n documents among the query rows and the key rows of all samples, [n + 1] integers each; the last
// element is the end. A document may have no queries or no keys.
struct DocumentRows {
  at::Tensor queries, keys;
};

struct FusedSpec {
  config::AttentionBy by = config::AttentionBy::flash;  // never AttentionBy::own
  bool causal = false;  // as many queries as keys: query i attends to keys 0 to i; otherwise to every key
  double softmax_scale = 0;
  // Only for flash attention:
  // Query i sees no keys before i + s_k - s_q - window; -1: no window. A window without a causal mask requires
  // s_q <= s_k over all rows. The operator also hides keys from i + s_k - s_q + (s_k over all rows) + 1 on.
  int64_t window = -1;
  DocumentRows documents = {};  // queries see only keys of their document; undefined: no documents
};
// Returns softmax(softmax_scale q k^T) v and the logsumexp of the scaled scores for backward, [b, heads, s_q] with
// any strides (memory-efficient attention pads s_q). A query whose document has no keys gives 0 and -inf. The host
// reads no device data: the operator gets the number of documents, including empty ones, and s_q and s_k as maximum
// lengths.
std::pair<at::Tensor, at::Tensor> fused_attention(const device::Target& target, const FusedInputs& in,
                                                  const FusedSpec& spec);

struct FusedResult {
  at::Tensor out, logsumexp, dout;
};
using FusedGradients = FusedInputs;
FusedGradients fused_attention_backward(const device::Target& target, const FusedInputs& in,
                                        const FusedResult& result, const FusedSpec& spec);

// The fused GPU attention operators on the meta device, where libtorch has no kernels, for the memory prediction. The
// results have the types, sizes and strides of the real ones, and internal allocations are made and freed in the same
// order. They follow flash_api.cpp, attention_backward.cu and MHA.cpp of libtorch 2.11. Two properties are not
// modeled: flash attention's split over keys when a microbatch is too small to fill a GPU, and cuDNN's private
// workspace. Only the workspace's fp32 gradient of the queries is allocated.
//
// Same as fused_attention and fused_attention_backward, on meta tensors. Flash attention uses the operator's layout,
// [b, s, heads, d] or, with `documents` offsets, [all rows, heads, d].
std::pair<at::Tensor, at::Tensor> flash_on_meta(const FusedInputs& in);
FusedGradients flash_backward_on_meta(const FusedInputs& in, const FusedResult& result, const at::Tensor& documents);
std::pair<at::Tensor, at::Tensor> cudnn_on_meta(const FusedInputs& in);
FusedGradients cudnn_backward_on_meta(const FusedInputs& in, const FusedResult& result);
std::pair<at::Tensor, at::Tensor> efficient_on_meta(const FusedInputs& in);
FusedGradients efficient_backward_on_meta(const FusedInputs& in, const FusedResult& result);

}  // namespace metroplex::nn
