// softmax(softmax_scale q k^T) v over what a mask lets through, and its gradients, a block of queries by a block of
// keys at a time, on a CPU: no [queries, keys] tensor exists. Blocks that are hidden as a whole are left out. A query
// that sees nothing gives 0. Sums are in Wide<T>, and their order depends on nothing but the numbers of queries and
// keys: not on threads, nor on what other heads or samples there are. q, k, dq and dk have heads of `head_dim`
// elements; v, out, dout and dv of `v_head_dim`.
#pragma once

#include <cstdint>

#include "cuda/kernels/attention_shape.h"

namespace metroplex::cuda::kernels {

template <class T>
struct AttentionForward {
  AttentionOperand<const T> q, k, v;
  AttentionOperand<T> out;
  Wide<T>* logsumexp = nullptr;  // [samples, heads, queries], of the scores; -inf where a query sees nothing
};
template <class T>
struct AttentionBackward {
  AttentionOperand<const T> q, k, v, out, dout;
  const Wide<T>* logsumexp = nullptr;
  AttentionOperand<T> dq, dk, dv;
};

// Memory to work in: `workers` times `bytes`, 64-byte aligned; as many threads work at most.
struct AttentionScratch {
  char* data = nullptr;
  int64_t bytes = 0, workers = 0;
};
// What `threads` threads or fewer want. `bytes` are linear in the numbers of queries and keys.
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

}  // namespace metroplex::cuda::kernels
