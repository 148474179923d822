// The formulas of route.h for the k chosen experts of one row, run by one CPU or GPU thread. The caller handles
// the whole row.
#pragma once

#include <cmath>

#include "kernels/route.h"

#ifdef __CUDACC__
#define MPX_BOTH __host__ __device__ inline
#else
#define MPX_BOTH inline
#endif

namespace metroplex::kernels {

constexpr double kLeastSum = 1e-20;  // added to sums of scores, which may be 0

template <class T>
MPX_BOTH T sigmoid_of(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
// As in libtorch, softplus(x) = x for x > 20.
template <class T>
MPX_BOTH T sqrtsoftplus_of(T x) {
  return std::sqrt(x > T(20) ? x : std::log1p(std::exp(x)));
}

// Scores that depend on a single logit.
template <class T>
MPX_BOTH T own_score(RouteScore score, T x) {
  return score == RouteScore::sigmoid ? sigmoid_of(x) : sqrtsoftplus_of(x);
}
// Derivative at logit x with score s.
template <class T>
MPX_BOTH T own_slope(RouteScore score, T x, T s) {
  if (score == RouteScore::sigmoid) return s * (T(1) - s);
  return s > T(0) ? sigmoid_of(x) / (T(2) * s) : T(0);
}

// The value compared by the choice: NaN becomes -infinity.
template <class T>
MPX_BOTH T comparable(T x) {
  return x == x ? x : -static_cast<T>(INFINITY);
}

// The value that orders experts.
template <class T>
MPX_BOTH T compared(const RouteForward<T>& row, const RouteShape& shape, int64_t e) {
  return comparable(row.bias != nullptr ? own_score(shape.score, row.logits[e]) + row.bias[e] : row.logits[e]);
}

// Softmax statistics of a row: largest logit, and sum of exp(logit - largest).
template <class T>
struct RowSoftmax {
  T largest = 0, sum = 1;
};

// An expert's contribution to its group: its score, which may differ from the value that orders experts.
template <class T>
MPX_BOTH T group_term(const RouteForward<T>& row, const RouteShape& shape, const RowSoftmax<T>& all, int64_t e) {
  const T x = row.logits[e];
  if (shape.score == RouteScore::softmax_of_chosen) return comparable(x);
  if (shape.score == RouteScore::softmax_of_all) return comparable(std::exp(x - all.largest) / all.sum);
  return comparable(own_score(shape.score, x) + (row.bias != nullptr ? row.bias[e] : T(0)));
}

// A value and its index; -1: none.
template <class T>
struct Place {
  T value = 0;
  int64_t index = -1;

  // Returns whether it precedes `other` in descending order; ties: lower index first.
  MPX_BOTH bool before(const Place& other) const {
    if (index < 0 || other.index < 0) return index >= 0;
    return value > other.value || (value == other.value && index < other.index);
  }
};

// Sums the best terms of group g in descending order: each iteration finds the next term after the last one.
template <class T>
MPX_BOTH T group_score(const RouteForward<T>& row, const RouteShape& shape, const RowSoftmax<T>& all, int64_t g) {
  const int64_t of_group = shape.experts / shape.groups;
  Place<T> last;
  T sum = 0;
  for (int64_t j = 0; j < shape.best_of_group; ++j) {
    Place<T> best;
    for (int64_t e = g * of_group; e < (g + 1) * of_group; ++e) {
      const Place<T> one{group_term(row, shape, all, e), e};
      if ((last.index < 0 || last.before(one)) && one.before(best)) best = one;
    }
    sum += best.value;
    last = best;
  }
  return sum;
}

// Computes probs[j] of logits[experts[j]]. `all`: statistics of the whole row, for softmax_of_all.
template <class T>
MPX_BOTH void chosen_probs(const T* logits, const int64_t* experts, T* probs, const RowSoftmax<T>& all,
                           const RouteShape& shape) {
  T sum = 0, largest = all.largest;
  if (shape.score == RouteScore::softmax_of_chosen) {
    largest = logits[experts[0]];
    for (int64_t j = 1; j < shape.k; ++j) largest = logits[experts[j]] > largest ? logits[experts[j]] : largest;
  }
  const bool own = shape.score == RouteScore::sigmoid || shape.score == RouteScore::sqrtsoftplus;
  for (int64_t j = 0; j < shape.k; ++j) {
    const T x = logits[experts[j]];
    probs[j] = own ? own_score(shape.score, x) : std::exp(x - largest);
    sum += probs[j];
  }
  if (own) sum = shape.normalizes ? sum + static_cast<T>(kLeastSum) : T(1);
  if (shape.score == RouteScore::softmax_of_all) sum = all.sum;
  for (int64_t j = 0; j < shape.k; ++j) probs[j] = probs[j] / sum * static_cast<T>(shape.scale);
}

// Writes dlogits of the chosen experts. Returns the mean that softmax_of_all subtracts from every expert, times its
// probability.
template <class T>
MPX_BOTH T chosen_gradients(const RouteBackward<T>& row, const RowSoftmax<T>& all, const RouteShape& shape) {
  const bool own = shape.score == RouteScore::sigmoid || shape.score == RouteScore::sqrtsoftplus;
  const T scale = static_cast<T>(shape.scale);
  T largest = all.largest, sum = 0, mean = 0;
  if (shape.score == RouteScore::softmax_of_chosen) {
    largest = row.logits[row.experts[0]];
    for (int64_t j = 1; j < shape.k; ++j) {
      const T x = row.logits[row.experts[j]];
      largest = x > largest ? x : largest;
    }
  }
  for (int64_t j = 0; j < shape.k; ++j) {
    const T x = row.logits[row.experts[j]], q = own ? own_score(shape.score, x) : std::exp(x - largest);
    sum += q;
    mean += q * row.dprobs[j] * scale;
  }
  if (own) sum = shape.normalizes ? sum + static_cast<T>(kLeastSum) : T(1);
  if (shape.score == RouteScore::softmax_of_all) sum = all.sum;
  mean = own && !shape.normalizes ? T(0) : mean / sum;
  for (int64_t j = 0; j < shape.k; ++j) {
    const int64_t e = row.experts[j];
    const T x = row.logits[e], q = own ? own_score(shape.score, x) : std::exp(x - largest);
    const T slope = own ? own_slope(shape.score, x, q) : q;
    row.dlogits[e] = slope * (row.dprobs[j] * scale - mean) / sum;
  }
  return mean;
}

}  // namespace metroplex::kernels
