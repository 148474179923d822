// Routing of tokens: the k experts of each row of logits and their probabilities in one pass, and the gradient of the
// logits in another. Formulas as in moe/routing.h.
#pragma once

#include <cstdint>

#include "cuda/kernels/dropout.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

enum class RouteScore {
  softmax_of_chosen,
  softmax_of_all,
  sigmoid,      // over their sum where the shape normalizes
  sqrtsoftplus  // likewise
};

struct RouteShape {
  int64_t tokens = 0, experts = 0, k = 0;
  RouteScore score = RouteScore::softmax_of_chosen;
  double scale = 1;     // multiplies the probabilities
  bool chosen = false;  // the choice is given
  bool normalizes = true;
  // Of equal groups of consecutive experts, the `groups_chosen` whose best `best_of_group` experts have the largest
  // sum of scores (with the bias, where there is one); the choice is among their experts. 0 groups: among all.
  int64_t groups = 0, groups_chosen = 0, best_of_group = 0;
};

// logits [tokens, experts]; bias [experts] or null, added to the scores for the choice alone; experts [tokens, k] is
// written, or with shape.chosen read; probs [tokens, k]. In descending order of what is chosen by; of equal ones the
// lowest expert or group first, and what is no number last. group_scores [tokens, groups] is room to work in, which
// is read where there are groups and no choice is given.
template <class T>
struct RouteForward {
  const T *logits = nullptr, *bias = nullptr;
  int64_t* experts = nullptr;
  T* probs = nullptr;
  T* group_scores = nullptr;

  // Of row t.
  constexpr RouteForward row(int64_t t, const RouteShape& s) const {
    return {logits + t * s.experts, bias, experts + t * s.k, probs + t * s.k,
            group_scores == nullptr ? nullptr : group_scores + t * s.groups};
  }
};
template <class T>
void route_forward(const RouteForward<T>& operands, const RouteShape& shape);

// dlogits [tokens, experts] of dprobs [tokens, k].
template <class T>
struct RouteBackward {
  const T *dprobs = nullptr, *logits = nullptr;
  const int64_t* experts = nullptr;
  T* dlogits = nullptr;
};
template <class T>
void route_backward(const RouteBackward<T>& operands, const RouteShape& shape);

// The same on a GPU, enqueued on `stream`. The choice by logits is that of the CPU; exponentials may differ by
// roundings. base::Error("cuda", ...) when nothing was launched.
template <class T>
void route_forward_cuda(const RouteForward<T>& operands, const RouteShape& shape, CUstream_st* stream);
template <class T>
void route_backward_cuda(const RouteBackward<T>& operands, const RouteShape& shape, CUstream_st* stream);

// What the auxiliary losses of a router read of its logits, in one pass: the sums over rows of each expert's share in
// its row's scores, and of logsumexp^2; and the gradient of the logits in another. Nothing of the size of the logits
// is kept in between.

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

// Sinkhorn's scaling of exp(logits), as Megatron-LM routes by it (core/transformer/moe/moe_utils.py): in turns
//   d0 = 1 / rows / (cost d1 + 1e-8),  d1 = 1 / columns / (cost^T d0 + 1e-8)
// from d1 = 1 on, until the mean change of d1 is at most the tolerance or is no number; out = d0 cost d1. The kernel
// itself sees the change, so the host reads nothing; it ends after kMostSinkhornTurns in any case.

constexpr int64_t kMostSinkhornTurns = 4096;  // logits of standard deviation 1 take about 5, of 8 some hundred

struct SinkhornShape {
  int64_t rows = 0, columns = 0;
  double tolerance = 1e-4;
};

// logits and out [rows, columns]; factors [rows + 2 columns] is room to work in.
template <class T>
void sinkhorn(const T* logits, T* out, T* factors, const SinkhornShape& shape);

// The same on a GPU, enqueued on `stream`, in one block: routing by Sinkhorn is not made for speed. Sums are in
// another order than on the CPU. base::Error("cuda", ...) when nothing was launched.
template <class T>
void sinkhorn_cuda(const T* logits, T* out, T* factors, const SinkhornShape& shape, CUstream_st* stream);

// Random numbers as a function of where they are, not of a stream: element e of a row is made of word (start + e) % 4
// of Philox4x32-10 with the row's key and counter (block (start + e) / 4, row counter), as dropout draws (dropout.h).

enum class Noise {
  uniform,  // in (0, 1)
  gumbel    // -log(-log(uniform)): the largest of log(w_i) + noise_i is i with probability w_i / sum w
};

// out [num_rows, width]; the shape's probability is not read. Made in double and rounded once.
template <class T>
void random_rows(T* out, Noise noise, const DropoutShape& shape);
// The same on a GPU, enqueued on `stream`; the logarithms may differ from the CPU's by roundings. base::Error("cuda",
// ...) when nothing was launched.
template <class T>
void random_rows_cuda(T* out, Noise noise, const DropoutShape& shape, CUstream_st* stream);

// Of a word of Philox, in the middle of its cell: never 0 or 1.
constexpr double uniform_double(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

}  // namespace metroplex::cuda::kernels
