// softmax(softmax_scale q k^T) v under a mask, and its gradients, on a CPU. It processes one block of queries and
// one block of keys at a time. No [queries, keys] tensor is allocated. Fully hidden blocks are skipped. A query
// that sees no key gives 0. Sums are in Wide<T>; their order depends only on the numbers of queries and keys, not
// on threads or on other heads and samples. q, k, dq and dk have heads of `head_dim` elements; v, out, dout and dv
// of `v_head_dim`.
#pragma once

#include <cstdint>

#include "kernels/attention_shape.h"

namespace metroplex::kernels {

template <class T>
struct AttentionForward {
  AttentionOperand<const T> q, k, v;
  AttentionOperand<T> out;
  Wide<T>* logsumexp = nullptr;  // [samples, heads, queries], of the scores; -inf for a query that sees no key
};
template <class T>
struct AttentionBackward {
  AttentionOperand<const T> q, k, v, out, dout;
  const Wide<T>* logsumexp = nullptr;
  AttentionOperand<T> dq, dk, dv;
};

// Scratch memory of `workers` * `bytes` bytes, 64-byte aligned; at most `workers` threads run.
struct AttentionScratch {
  char* data = nullptr;
  int64_t bytes = 0, workers = 0;
};
// Scratch for at most `threads` threads. `bytes` is linear in the numbers of queries and keys.
template <class T>
AttentionScratch attention_forward_scratch(const AttentionShape& shape, int64_t threads);
template <class T>
AttentionScratch attention_backward_scratch(const AttentionShape& shape, int64_t threads);

template <class T>
void attention_forward(const AttentionForward<T>& operands, const AttentionShape& shape,
                       const AttentionScratch& scratch);
template <class T>
void attention_backward(const AttentionBackward<T>& operands, const AttentionShape& shape,
                        const AttentionScratch& scratch);

}  // namespace metroplex::kernels
