// Sums of a router's logits for its auxiliary losses in one pass: for each expert, the number of tokens that chose it
// and the sum of its normalized scores over rows, and the sum of logsumexp^2. A second pass computes the gradient of
// the logits. No tensor of the logits' size is saved in between.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace metroplex::kernels {

enum class BalanceScore { none, softmax, sigmoid, sqrtsoftplus };

// logits [tokens, experts]; row t belongs to sample t % samples. Sums are [samples, experts] tokens, [samples,
// experts] normalized scores, then one number for logsumexp^2; sums that are not requested are 0.
struct BalanceShape {
  int64_t tokens = 0, experts = 0, samples = 1;
  BalanceScore score = BalanceScore::softmax;
  bool z = false;
  int64_t chosen = 0;  // experts per token; 0: tokens are not counted
  int64_t mask = 0;    // elements of the loss mask

  constexpr int64_t bins() const { return samples * experts; }
  constexpr int64_t line() const { return 2 * bins() + 1; }  // sums over rows
  constexpr int64_t sums() const { return line() + 1; }
};
template <class T>
struct BalanceInputs {
  const T* logits = nullptr;
  const int64_t* chosen = nullptr;  // [tokens, shape.chosen]; -1: none
  const T* mask = nullptr;          // [shape.mask]
};

// The value of a loss term and the gradient of the sums of scores and of logsumexp^2.
struct BalanceTerm {
  enum class Kind { aux, seq, z };  // over all samples together, over each sample, logsumexp^2
  Kind kind = Kind::aux;
  int64_t samples = 1, experts = 0;
  double factor = 0;   // of tokens * scores, or of logsumexp^2
  double divisor = 1;  // of the value alone
};

// A weight below 1 counts as 1, and NaN as NaN.
constexpr double term_factor(const BalanceTerm& term, double weight) {
  return term.factor * (weight < 1 ? 1 : weight);
}
// Tokens in the product with the scores of bin i.
constexpr double term_tokens(const double* sums, const BalanceTerm& term, int64_t i) {
  if (term.kind == BalanceTerm::Kind::z) return 0;
  if (term.kind == BalanceTerm::Kind::seq) return sums[i];
  double tokens = 0;
  for (int64_t sample = 0; sample < term.samples; ++sample) tokens += sums[sample * term.experts + i % term.experts];
  return tokens;
}

// Rows are summed in chunks of this size, then the chunks are summed in order.
constexpr int64_t kBalanceRows = 32;
constexpr int64_t balance_chunks(const BalanceShape& shape) {
  return (shape.tokens + kBalanceRows - 1) / kBalanceRows;
}

// lines [balance_chunks, line] is scratch.
template <class T>
void balance_forward(const BalanceInputs<T>& in, double* sums, double* lines, const BalanceShape& shape);
// sums: see BalanceShape. The factor is multiplied by `weight`, at least 1. gradient [bins + 1].
void balance_term(const double* sums, const double* weight, double* value, double* gradient, const BalanceTerm& term);
// Computes dlogits from the gradient of the scores and of logsumexp^2, dsums [bins + 1] times *scale, or 1 if null.
template <class T>
void balance_backward(const T* logits, const double* dsums, const double* scale, T* dlogits,
                      const BalanceShape& shape);

// GPU versions, enqueued on `stream`. They throw base::Error("cuda", ...) if the launch fails.
template <class T>
void balance_forward_cuda(const BalanceInputs<T>& in, double* sums, double* lines, const BalanceShape& shape,
                          CUstream_st* stream);
void balance_term_cuda(const double* sums, const double* weight, double* value, double* gradient,
                       const BalanceTerm& term, CUstream_st* stream);
template <class T>
void balance_backward_cuda(const T* logits, const double* dsums, const double* scale, T* dlogits,
                           const BalanceShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels
