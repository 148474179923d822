// The softmax of attention, and its gradient, between products that a library makes: scores q k^T of some queries and
// keys come as a tensor, and dropped probabilities go to one, for the product with the values. The mask is that of
// attention_shape.h, and what a query does not see has probability 0.
#pragma once

#include <cstdint>

#include "cuda/kernels/attention_shape.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// Which scores a tensor [heads, queries, stride] holds, of [samples * heads, queries, keys] of a shape. `stride` is
// from row to row: `keys` rounded up to a multiple of kScoreColumns, so that every row begins with whole quads.
constexpr int64_t kScoreColumns = 8;
struct ScoreBlock {
  int64_t first_head = 0, heads = 0, first_query = 0, queries = 0, first_key = 0, keys = 0, stride = 0;

  constexpr int64_t rows() const { return heads * queries; }
};

template <class T>
struct AttentionSoftmax {
  const Wide<T>* scores = nullptr;  // not scaled
  T* probabilities = nullptr;       // dropped, those that are kept scaled up
  Wide<T>* logsumexp = nullptr;     // of the shape, [samples, heads, queries]
};
template <class T>
struct AttentionSoftmaxBackward {
  const Wide<T>*scores = nullptr, *dprobabilities = nullptr;  // dout v^T
  const Wide<T>* logsumexp = nullptr;                         // over all keys of a query, as `out` is
  AttentionOperand<const T> out, dout;
  T *probabilities = nullptr, *dscores = nullptr;  // the gradient of q k^T
};

template <class T>
void attention_softmax(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block);
template <class T>
void attention_softmax_backward(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                const ScoreBlock& block);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. Results differ from those of the CPU by
// the order of sums. base::Error("cuda", ...) when nothing was launched.
template <class T>
void attention_softmax_cuda(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block,
                            CUstream_st* stream);
template <class T>
void attention_softmax_backward_cuda(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                     const ScoreBlock& block, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
