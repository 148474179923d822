// Token routing: the k experts of each row of logits and their probabilities in one pass, and the gradient of the
// logits in another. Formulas as in moe/routing.h.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

struct CUstream_st;

namespace metroplex::kernels {

enum class RouteScore {
  softmax_of_chosen,
  softmax_of_all,
  sigmoid,      // divided by their sum if the shape normalizes
  sqrtsoftplus  // same
};

struct RouteShape {
  int64_t tokens = 0, experts = 0, k = 0;
  RouteScore score = RouteScore::softmax_of_chosen;
  double scale = 1;     // factor of the probabilities
  bool chosen = false;  // the choice is an input
  bool normalizes = true;
  // Experts form `groups` equal groups of consecutive ones. Only experts of `groups_chosen` groups are eligible:
  // those with the largest sum of scores (plus bias, if any) of their best `best_of_group` experts. 0 groups: all are
  // eligible.
  int64_t groups = 0, groups_chosen = 0, best_of_group = 0;
};

// logits [tokens, experts]; bias [experts] or null, added to the scores for the choice only; experts [tokens, k] is
// an output, or an input with shape.chosen; probs [tokens, k]. Experts are in descending order of the compared value;
// ties: lowest expert or group first; NaN last. group_scores [tokens, groups] is scratch, only used with groups and
// without a given choice.
template <class T>
struct RouteForward {
  const T *logits = nullptr, *bias = nullptr;
  int64_t* experts = nullptr;
  T* probs = nullptr;
  T* group_scores = nullptr;

  // The operands of row t.
  constexpr RouteForward row(int64_t t, const RouteShape& s) const {
    return {logits + t * s.experts, bias, experts + t * s.k, probs + t * s.k,
            group_scores == nullptr ? nullptr : group_scores + t * s.groups};
  }
};
template <class T>
void route_forward(const RouteForward<T>& operands, const RouteShape& shape);

// Computes dlogits [tokens, experts] from dprobs [tokens, k].
template <class T>
struct RouteBackward {
  const T *dprobs = nullptr, *logits = nullptr;
  const int64_t* experts = nullptr;
  T* dlogits = nullptr;
};
template <class T>
void route_backward(const RouteBackward<T>& operands, const RouteShape& shape);

// GPU versions, enqueued on `stream`. The choice by logits equals the CPU's; exponentials may differ by rounding.
// Throw base::Error("cuda", ...) if the launch fails.
template <class T>
void route_forward_cuda(const RouteForward<T>& operands, const RouteShape& shape, CUstream_st* stream);
template <class T>
void route_backward_cuda(const RouteBackward<T>& operands, const RouteShape& shape, CUstream_st* stream);

// Sums of a router's logits for its auxiliary losses in one pass: for each expert, the sum of its normalized scores
// over rows, and the sum of logsumexp^2. A second pass computes the gradient of the logits. No tensor of the logits'
// size is saved in between.

enum class BalanceScore { none, softmax, sigmoid, sqrtsoftplus };

// logits [tokens, experts]; row t belongs to sample t % samples. Sums are [samples, experts] normalized scores, then
// one number for logsumexp^2; sums that are not requested are 0.
struct BalanceShape {
  int64_t tokens = 0, experts = 0, samples = 1;
  BalanceScore score = BalanceScore::softmax;
  bool z = false;

  constexpr int64_t sums() const { return samples * experts + 1; }
};

// Rows are summed in chunks, and the chunks in order.
constexpr int64_t kBalanceRows = 32;
constexpr int64_t balance_chunks(const BalanceShape& s) { return (s.tokens + kBalanceRows - 1) / kBalanceRows; }

// lines [balance_chunks, sums] is scratch.
template <class T>
void balance_forward(const T* logits, double* sums, double* lines, const BalanceShape& shape);
// Computes dlogits from dsums.
template <class T>
void balance_backward(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape);

// GPU versions, enqueued on `stream`. Throw base::Error("cuda", ...) if the launch fails.
template <class T>
void balance_forward_cuda(const T* logits, double* sums, double* lines, const BalanceShape& shape,
                          CUstream_st* stream);
template <class T>
void balance_backward_cuda(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape,
                           CUstream_st* stream);

// Sinkhorn scaling of exp(logits), as in Megatron-LM's routing (core/transformer/moe/moe_utils.py). It alternates
//   d0 = 1 / rows / (cost d1 + 1e-8),  d1 = 1 / columns / (cost^T d0 + 1e-8)
// from d1 = 1 on, until the mean change of d1 is at most the tolerance or NaN; out = d0 cost d1. The kernel tests the
// change itself, so the host reads nothing. It stops after kMostSinkhornTurns iterations in any case.

constexpr int64_t kMostSinkhornTurns = 4096;  // standard deviation 1 takes about 5 iterations, 8 some hundred

struct SinkhornShape {
  int64_t rows = 0, columns = 0;
  double tolerance = 1e-4;
};

// logits and out [rows, columns]; factors [rows + 2 columns] is scratch.
template <class T>
void sinkhorn(const T* logits, T* out, T* factors, const SinkhornShape& shape);

// GPU version, enqueued on `stream`, in one thread block: it is not optimized for speed. The order of sums differs
// from the CPU's. Throws base::Error("cuda", ...) if the launch fails.
template <class T>
void sinkhorn_cuda(const T* logits, T* out, T* factors, const SinkhornShape& shape, CUstream_st* stream);

// Random numbers as a function of location, without a random stream. Element e of a row uses word (start + e) % 4 of
// Philox4x32-10 with the row's key and counter (block (start + e) / 4, row counter), like dropout (dropout.h).

enum class Noise {
  uniform,  // in (0, 1)
  gumbel    // -log(-log(uniform)): the largest of log(w_i) + noise_i is i with probability w_i / sum w
};

// out [num_rows, width]; the shape's probability is unused. They are computed in double and rounded once.
template <class T>
void random_rows(T* out, Noise noise, const DropoutShape& shape);
// GPU version, enqueued on `stream`; logarithms may differ from the CPU's by rounding. Throws base::Error("cuda",
// ...) if the launch fails.
template <class T>
void random_rows_cuda(T* out, Noise noise, const DropoutShape& shape, CUstream_st* stream);

// Converts a Philox word to the center of its interval: never 0 or 1.
constexpr double uniform_double(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

}  // namespace metroplex::kernels
