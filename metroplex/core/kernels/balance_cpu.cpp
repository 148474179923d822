#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/balance.h"
#include "kernels/route.h"
#include "kernels/route_math.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3")

namespace metroplex::kernels {
namespace {

// Scores of one row: its softmax, and the scores that depend on a single logit.
template <class T>
class Row {
 public:
  explicit Row(const BalanceShape& shape)
      : s_(shape), softmax_(static_cast<size_t>(shape.experts)), own_(softmax_.size()) {}

  void read(const T* x) {
    const int64_t n = s_.experts;
    if (s_.z || s_.score == BalanceScore::softmax) {
      T largest = x[0];
      for (int64_t e = 1; e < n; ++e) largest = x[e] > largest ? x[e] : largest;
      T* const p = softmax_.data();
      for (int64_t e = 0; e < n; ++e) p[e] = vector_exp(x[e] - largest);
      const T sum = lane_sum<T>(n, [&](int64_t e) { return p[e]; });
      for (int64_t e = 0; e < n; ++e) p[e] /= sum;
      logsumexp_ = largest + std::log(sum);
    }
    if (s_.score == BalanceScore::none || s_.score == BalanceScore::softmax) return;
    sum_ = static_cast<T>(kLeastSum);
    for (int64_t e = 0; e < n; ++e) sum_ += own_[static_cast<size_t>(e)] = own_score(score(), x[e]);
  }

  T share(int64_t e) const {
    const auto i = static_cast<size_t>(e);
    return s_.score == BalanceScore::softmax ? softmax_[i] : own_[i] / sum_;
  }
  T logsumexp() const { return logsumexp_; }

  // Gradient of the normalized scores and of logsumexp^2.
  void gradient(const T* x, const double* dshares, T dz, T* dx) const {
    const bool shares = s_.score != BalanceScore::none, softmax = s_.score == BalanceScore::softmax;
    T mean = 0;
    for (int64_t e = 0; shares && e < s_.experts; ++e) mean += share(e) * static_cast<T>(dshares[e]);
    for (int64_t e = 0; e < s_.experts; ++e) {
      const auto i = static_cast<size_t>(e);
      T d = 0;
      if (shares) {
        const T slope = softmax ? softmax_[i] : own_slope(score(), x[e], own_[i]) / sum_;
        d = slope * (static_cast<T>(dshares[e]) - mean);
      }
      dx[e] = s_.z ? d + dz * T(2) * logsumexp_ * softmax_[i] : d;
    }
  }

 private:
  RouteScore score() const {
    return s_.score == BalanceScore::sigmoid ? RouteScore::sigmoid : RouteScore::sqrtsoftplus;
  }

  BalanceShape s_;
  std::vector<T> softmax_, own_;
  T sum_ = 1, logsumexp_ = 0;
};

}  // namespace

template <class T>
void balance_forward(const BalanceInputs<T>& in, double* sums, double* lines, const BalanceShape& shape) {
  const int64_t chunks = balance_chunks(shape), n = shape.line();
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    Row<T> row(shape);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      double* const line = lines + chunk * n;
      std::fill(line, line + n, 0.0);
      for (int64_t t = chunk * kBalanceRows; t < std::min(shape.tokens, (chunk + 1) * kBalanceRows); ++t) {
        row.read(in.logits + t * shape.experts);
        double* const tokens = line + t % shape.samples * shape.experts;
        double* const of_sample = tokens + shape.bins();
        for (int64_t j = t * shape.chosen; j < (t + 1) * shape.chosen; ++j) {
          if (in.chosen[j] >= 0) tokens[in.chosen[j]] += 1;
        }
        for (int64_t e = 0; shape.score != BalanceScore::none && e < shape.experts; ++e) of_sample[e] += row.share(e);
        if (shape.z) line[n - 1] += row.logsumexp() * row.logsumexp();
      }
    }
  });
  std::fill(sums, sums + n + 1, 0.0);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t i = 0; i < n; ++i) sums[i] += lines[chunk * n + i];
  }
  for (int64_t i = 0; i < shape.mask; ++i) sums[n] += static_cast<double>(in.mask[i]);
}

void balance_term(const double* sums, const double* weight, double* value, double* gradient,
                  const BalanceTerm& term) {
  const int64_t bins = term.samples * term.experts;
  const double factor = term_factor(term, *weight);
  double sum = 0;
  for (int64_t i = 0; i < bins; ++i) {
    gradient[i] = term_tokens(sums, term, i) * factor;
    sum += sums[bins + i] * gradient[i];
  }
  gradient[bins] = term.kind == BalanceTerm::Kind::z ? factor : 0;
  *value = (sum + sums[2 * bins] * gradient[bins]) / term.divisor;
}

template <class T>
void balance_backward(const T* logits, const double* dsums, const double* scale, T* dlogits,
                      const BalanceShape& shape) {
  std::vector<double> scaled(dsums, dsums + shape.bins() + 1);
  for (double& each : scaled) each *= scale != nullptr ? *scale : 1;
  const T dz = static_cast<T>(scaled.back());
  at::parallel_for(0, shape.tokens, kBalanceRows, [&](int64_t begin, int64_t end) {
    Row<T> row(shape);
    for (int64_t t = begin; t < end; ++t) {
      const T* const x = logits + t * shape.experts;
      row.read(x);
      row.gradient(x, scaled.data() + t % shape.samples * shape.experts, dz, dlogits + t * shape.experts);
    }
  });
}

#define MPX_INSTANTIATE(T)                                                                          \
  template void balance_forward<T>(const BalanceInputs<T>&, double*, double*, const BalanceShape&); \
  template void balance_backward<T>(const T*, const double*, const double*, T*, const BalanceShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::kernels
