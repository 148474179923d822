// The softmax of attention and its gradient, between matrix products of a library. Scores q k^T of some queries and
// keys are an input tensor. Probabilities with dropout are an output tensor, for the product with the values. The
// mask is that of attention_shape.h; hidden keys have probability 0.
#pragma once

#include <cstdint>

#include "kernels/attention_shape.h"

struct CUstream_st;

namespace metroplex::kernels {

// The block of a shape's [samples * heads, queries, keys] scores that a tensor [heads, queries, stride] holds.
// `stride` is the row stride: `keys` rounded up to a multiple of kScoreColumns, so that rows consist of whole quads.
constexpr int64_t kScoreColumns = 8;
struct ScoreBlock {
  int64_t first_head = 0, heads = 0, first_query = 0, queries = 0, first_key = 0, keys = 0, stride = 0;

  constexpr int64_t rows() const { return heads * queries; }
};

template <class T>
struct AttentionSoftmax {
  const Wide<T>* scores = nullptr;  // unscaled
  T* probabilities = nullptr;       // with dropout applied and kept values rescaled
  Wide<T>* logsumexp = nullptr;     // of the whole shape, [samples, heads, queries]
};
template <class T>
struct AttentionSoftmaxBackward {
  const Wide<T>*scores = nullptr, *dprobabilities = nullptr;  // dprobabilities = dout v^T
  const Wide<T>* logsumexp = nullptr;                         // over all keys of a query, like `out`
  AttentionOperand<const T> out, dout;
  T *probabilities = nullptr, *dscores = nullptr;  // dscores: gradient of q k^T
};

template <class T>
void attention_softmax(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block);
template <class T>
void attention_softmax_backward(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                const ScoreBlock& block);

// GPU versions, enqueued on `stream`; all pointers are device pointers. Results differ from the CPU's by the order of
// sums. Throw base::Error("cuda", ...) if the launch fails.
template <class T>
void attention_softmax_cuda(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block,
                            CUstream_st* stream);
template <class T>
void attention_softmax_backward_cuda(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                     const ScoreBlock& block, CUstream_st* stream);

}  // namespace metroplex::kernels
