// What the auxiliary losses of a router read of its logits, in one pass: the sums over rows of each expert's share in
// its row's scores, and of logsumexp^2; and the gradient of the logits in another. Nothing of the size of the logits
// is kept in between.
#pragma once

#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

enum class BalanceScore { none, softmax, sigmoid, sqrtsoftplus };

// logits [tokens, experts]; row t is of sample t % samples. Sums are [samples, experts] shares and behind them one
// number, of logsumexp^2; what is not asked for is 0.
struct BalanceShape {
  int64_t tokens = 0, experts = 0, samples = 1;
  BalanceScore score = BalanceScore::softmax;
  bool z = false;

  constexpr int64_t sums() const { return samples * experts + 1; }
};

// Rows are added up in chunks, and these in order.
constexpr int64_t kBalanceRows = 32;
constexpr int64_t balance_chunks(const BalanceShape& s) { return (s.tokens + kBalanceRows - 1) / kBalanceRows; }

// lines [balance_chunks, sums] is room to work in.
template <class T>
void balance_forward(const T* logits, double* sums, double* lines, const BalanceShape& shape);
// dlogits of dsums.
template <class T>
void balance_backward(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape);

// The same on a GPU, enqueued on `stream`. base::Error("cuda", ...) when nothing was launched.
template <class T>
void balance_forward_cuda(const T* logits, double* sums, double* lines, const BalanceShape& shape,
                          CUstream_st* stream);
template <class T>
void balance_backward_cuda(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape,
                           CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
