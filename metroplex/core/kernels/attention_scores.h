// Attention softmax and its gradient; a library computes the matrix products before and after it. The input is a
// block of scores q k^T. The output is the probabilities after dropout, which the caller multiplies by the values.
// attention_shape.h defines the mask; hidden keys have probability 0.
#pragma once

#include <cstdint>

#include "kernels/attention_shape.h"

struct CUstream_st;

namespace metroplex::kernels {

// A block of the shape's scores [samples * heads, queries, keys], stored in a tensor [heads, queries, stride].
// `stride` is the row stride: `keys` rounded up to a multiple of kScoreColumns, so that rows consist of whole
// quads.
constexpr int64_t kScoreColumns = 8;
struct ScoreBlock {
  int64_t first_head = 0, heads = 0, first_query = 0, queries = 0, first_key = 0, keys = 0, stride = 0;

  constexpr int64_t rows() const { return heads * queries; }
};

template <class T>
struct AttentionSoftmax {
  const Wide<T>* scores = nullptr;  // unscaled
  T* probabilities = nullptr;       // with dropout applied and kept values rescaled
  Wide<T>* logsumexp = nullptr;     // [samples, heads, queries] of the whole shape
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

// GPU versions, enqueued on `stream`; all pointers are device pointers. The summation order differs from the CPU
// version's. They throw base::Error("cuda", ...) if the launch fails.
template <class T>
void attention_softmax_cuda(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block,
                            CUstream_st* stream);
template <class T>
void attention_softmax_backward_cuda(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                     const ScoreBlock& block, CUstream_st* stream);

}  // namespace metroplex::kernels
