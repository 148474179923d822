#include <ATen/Parallel.h>

#include <limits>

#include "cuda/kernels/cross_entropy.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

template <class T>
MPX_INLINE T lane_max(const T* __restrict x, int64_t n) {
  constexpr int64_t kLanes = 16;
  T lanes[kLanes];
  for (T& lane : lanes) lane = -std::numeric_limits<T>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  T result = -std::numeric_limits<T>::infinity();
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  for (int64_t l = 0; l < kLanes; ++l) result = lanes[l] > result ? lanes[l] : result;
  return result;
}

template <class T>
struct Operands {
  T* logits;
  const int64_t* targets;
  RowStatistics<T> out;
  CrossEntropyGradient<T> gradient;
};

template <class T>
MPX_INLINE void statistics_loop(const Operands<T>& o, const LogitsShape& s, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = o.logits + row * s.stride;
    const T maximum = lane_max(x, s.columns);
    o.out.maximum[row] = maximum;
    // A NaN loses every comparison above but not here: the loss becomes NaN, as it must.
    o.out.exp_sum[row] = lane_sum<T>(s.columns, [&](int64_t i) { return vector_exp(x[i] - maximum) + T(0) * x[i]; });
    const int64_t target = o.targets[row];
    o.out.target[row] = target >= 0 && target < s.columns ? x[target] : T(0);
    if (o.out.sum != nullptr) o.out.sum[row] = lane_sum<T>(s.columns, [&](int64_t i) { return x[i]; });
  }
}

template <class T>
MPX_INLINE void backward_loop(const Operands<T>& o, const LogitsShape& s, int64_t begin, int64_t end) {
  const T uniform = static_cast<T>(o.gradient.uniform);
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict x = o.logits + row * s.stride;
    const T logsumexp = o.gradient.logsumexp[row], scale = o.gradient.scale[row];
    if (scale == T(0)) {
      for (int64_t i = 0; i < s.stride; ++i) x[i] = T(0);
      continue;
    }
    for (int64_t i = 0; i < s.columns; ++i) x[i] = scale * (vector_exp(x[i] - logsumexp) - uniform);
    for (int64_t i = s.columns; i < s.stride; ++i) x[i] = T(0);
    const int64_t target = o.targets[row];
    if (target >= 0 && target < s.columns) x[target] -= scale * static_cast<T>(o.gradient.on_target);
  }
}

MPX_VECTOR_CLONES void statistics_rows(const Operands<float>& o, const LogitsShape& s, int64_t b, int64_t e) {
  statistics_loop(o, s, b, e);
}
MPX_VECTOR_CLONES void backward_rows(const Operands<float>& o, const LogitsShape& s, int64_t b, int64_t e) {
  backward_loop(o, s, b, e);
}
void statistics_rows(const Operands<double>& o, const LogitsShape& s, int64_t b, int64_t e) {
  statistics_loop(o, s, b, e);
}
void backward_rows(const Operands<double>& o, const LogitsShape& s, int64_t b, int64_t e) {
  backward_loop(o, s, b, e);
}

int64_t grain(const LogitsShape& shape) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.stride)); }

}  // namespace

template <class T>
void cross_entropy_statistics(const T* logits, const int64_t* targets, const RowStatistics<T>& out,
                              const LogitsShape& shape) {
  const Operands<T> o{const_cast<T*>(logits), targets, out, {}};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { statistics_rows(o, shape, begin, end); });
}

template <class T>
void cross_entropy_backward(T* logits, const int64_t* targets, const CrossEntropyGradient<T>& gradient,
                            const LogitsShape& shape) {
  const Operands<T> o{logits, targets, {}, gradient};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { backward_rows(o, shape, begin, end); });
}

#define MPX_INSTANTIATE(T)                                                                                          \
  template void cross_entropy_statistics<T>(const T*, const int64_t*, const RowStatistics<T>&, const LogitsShape&); \
  template void cross_entropy_backward<T>(T*, const int64_t*, const CrossEntropyGradient<T>&, const LogitsShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels
