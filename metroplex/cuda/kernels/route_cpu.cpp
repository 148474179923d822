#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "cuda/kernels/route_math.h"

#pragma GCC optimize("O3")

namespace metroplex::cuda::kernels {
namespace {

template <class T>
RowSoftmax<T> row_softmax(const T* x, int64_t n) {
  RowSoftmax<T> all;
  all.largest = x[0];
  for (int64_t e = 1; e < n; ++e) all.largest = x[e] > all.largest ? x[e] : all.largest;
  all.sum = 0;
  for (int64_t e = 0; e < n; ++e) all.sum += std::exp(x[e] - all.largest);
  return all;
}

// The k largest of values(0..n-1) with their places in descending order: the list grows by insertion.
template <class T, class Values>
void choose_row(const Values& values, int64_t n, int64_t k, T* best, int64_t* places) {
  for (int64_t e = 0; e < n; ++e) {
    const T value = comparable(values(e));
    const int64_t known = std::min(e, k);
    if (known == k && !(value > best[k - 1])) continue;
    int64_t at = std::min(known, k - 1);
    for (; at > 0 && value > best[at - 1]; --at) {
      best[at] = best[at - 1];
      places[at] = places[at - 1];
    }
    best[at] = value;
    places[at] = e;
  }
}

template <class T>
void forward_row(const RouteForward<T>& o, const RouteShape& s, T* best) {
  if (!s.chosen && o.bias != nullptr) {
    const auto score = [&](int64_t e) { return own_score(s.score, o.logits[e]) + o.bias[e]; };
    choose_row(score, s.experts, s.k, best, o.experts);
  } else if (!s.chosen) {
    choose_row([&](int64_t e) { return o.logits[e]; }, s.experts, s.k, best, o.experts);
  }
  const bool whole = s.score == RouteScore::softmax_of_all;
  chosen_probs(o.logits, o.experts, o.probs, whole ? row_softmax(o.logits, s.experts) : RowSoftmax<T>(), s);
}

template <class T>
void backward_row(const RouteBackward<T>& o, const RouteShape& s) {
  const bool whole = s.score == RouteScore::softmax_of_all;
  const RowSoftmax<T> all = whole ? row_softmax(o.logits, s.experts) : RowSoftmax<T>();
  std::fill(o.dlogits, o.dlogits + s.experts, T(0));
  const T mean = chosen_gradients(o, all, s);
  if (!whole) return;
  for (int64_t e = 0; e < s.experts; ++e) {
    const bool chosen = std::find(o.experts, o.experts + s.k, e) != o.experts + s.k;
    if (!chosen) o.dlogits[e] = -mean * std::exp(o.logits[e] - all.largest) / all.sum;
  }
}

int64_t grain(const RouteShape& s) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, s.experts)); }

}  // namespace

template <class T>
void route_forward(const RouteForward<T>& o, const RouteShape& s) {
  at::parallel_for(0, s.tokens, grain(s), [&](int64_t begin, int64_t end) {
    std::vector<T> best(static_cast<size_t>(s.k));
    for (int64_t t = begin; t < end; ++t)
      forward_row<T>({o.logits + t * s.experts, o.bias, o.experts + t * s.k, o.probs + t * s.k}, s, best.data());
  });
}

template <class T>
void route_backward(const RouteBackward<T>& o, const RouteShape& s) {
  at::parallel_for(0, s.tokens, grain(s), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      backward_row<T>({o.dprobs + t * s.k, o.logits + t * s.experts, o.experts + t * s.k, o.dlogits + t * s.experts},
                      s);
  });
}

#define MPX_INSTANTIATE(T)                                                   \
  template void route_forward<T>(const RouteForward<T>&, const RouteShape&); \
  template void route_backward<T>(const RouteBackward<T>&, const RouteShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels
