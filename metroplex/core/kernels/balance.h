// Sums of a router's logits for its auxiliary losses in one pass: for each expert, the sum of its normalized scores
// over rows, and the sum of logsumexp^2. A second pass computes the gradient of the logits. No tensor of the logits'
// size is saved in between.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace metroplex::kernels {

enum class BalanceScore { none, softmax, sigmoid, sqrtsoftplus };

// logits [tokens, experts]; row t belongs to sample t % samples. Sums are [samples, experts] normalized scores, then
// one number for logsumexp^2; sums that are not requested are 0.
struct BalanceShape {
  int64_t tokens = 0, experts = 0, samples = 1;
  BalanceScore score = BalanceScore::softmax;
  bool z = false;

  constexpr int64_t sums() const { return samples * experts + 1; }
};

// Rows are summed in chunks of this size, then the chunks are summed in order.
constexpr int64_t kBalanceRows = 32;
constexpr int64_t balance_chunks(const BalanceShape& shape) {
  return (shape.tokens + kBalanceRows - 1) / kBalanceRows;
}

// lines [balance_chunks, sums] is scratch.
template <class T>
void balance_forward(const T* logits, double* sums, double* lines, const BalanceShape& shape);
// Computes dlogits from dsums.
template <class T>
void balance_backward(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape);

// GPU versions, enqueued on `stream`. They throw base::Error("cuda", ...) if the launch fails.
template <class T>
void balance_forward_cuda(const T* logits, double* sums, double* lines, const BalanceShape& shape,
                          CUstream_st* stream);
template <class T>
void balance_backward_cuda(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape,
                           CUstream_st* stream);

}  // namespace metroplex::kernels
