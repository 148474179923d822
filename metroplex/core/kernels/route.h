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
  sigmoid,      // scores are divided by their sum if shape.normalizes
  sqrtsoftplus  // same
};

struct RouteShape {
  int64_t tokens = 0, experts = 0, k = 0;
  RouteScore score = RouteScore::softmax_of_chosen;
  double scale = 1;     // factor of the probabilities
  bool chosen = false;  // the chosen experts are an input
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
  constexpr RouteForward row(int64_t t, const RouteShape& shape) const {
    return {logits + t * shape.experts, bias, experts + t * shape.k, probs + t * shape.k,
            group_scores == nullptr ? nullptr : group_scores + t * shape.groups};
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

// GPU versions, enqueued on `stream`. Experts chosen by logits equal the CPU version's; exponentials may differ by
// rounding. They throw base::Error("cuda", ...) if the launch fails.
template <class T>
void route_forward_cuda(const RouteForward<T>& operands, const RouteShape& shape, CUstream_st* stream);
template <class T>
void route_backward_cuda(const RouteBackward<T>& operands, const RouteShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels
