#include <ATen/Parallel.h>

#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
MPX_INLINE Wide<T> lane_max(const T* __restrict x, int64_t n) {
  using A = Wide<T>;
  constexpr int64_t kLanes = 16;
  A lanes[kLanes];
  for (A& lane : lanes) lane = -std::numeric_limits<A>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = load(x[i + l]) > lanes[l] ? load(x[i + l]) : lanes[l];
  }
  A result = -std::numeric_limits<A>::infinity();
  for (; i < n; ++i) result = load(x[i]) > result ? load(x[i]) : result;
  for (int64_t l = 0; l < kLanes; ++l) result = lanes[l] > result ? lanes[l] : result;
  return result;
}

template <class T>
struct Operands {
  T* logits;
  const int64_t* targets;
  RowStatistics<Wide<T>> out;
  CrossEntropyGradient<Wide<T>> gradient;
};

template <class T>
MPX_INLINE void statistics_loop(const Operands<T>& operands, const LogitsShape& shape, int64_t begin, int64_t end) {
  using A = Wide<T>;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = operands.logits + row * shape.stride;
    const A maximum = lane_max(x, shape.columns);
    operands.out.maximum[row] = maximum;
    // NaN fails all comparisons above; 0 * x propagates it here, so that the loss becomes NaN.
    operands.out.exp_sum[row] =
        lane_sum<A>(shape.columns, [&](int64_t i) { return vector_exp(load(x[i]) - maximum) + A(0) * load(x[i]); });
    const int64_t target = operands.targets[row];
    operands.out.target[row] = target >= 0 && target < shape.columns ? load(x[target]) : A(0);
    if (operands.out.sum != nullptr)
      operands.out.sum[row] = lane_sum<A>(shape.columns, [&](int64_t i) { return load(x[i]); });
  }
}

template <class T>
MPX_INLINE void backward_loop(const Operands<T>& operands, const LogitsShape& shape, int64_t begin, int64_t end) {
  using A = Wide<T>;
  const A uniform = static_cast<A>(operands.gradient.uniform);
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict x = operands.logits + row * shape.stride;
    const A logsumexp = operands.gradient.logsumexp[row], scale = operands.gradient.scale[row];
    if (scale == A(0)) {
      for (int64_t i = 0; i < shape.stride; ++i) x[i] = store<T>(A(0));
      continue;
    }
    const int64_t target = operands.targets[row];
    const bool here = target >= 0 && target < shape.columns;
    // This precedes rounding to a half type, because the two terms of the target's gradient may nearly cancel.
    A at_target = here ? scale * (vector_exp(load(x[target]) - logsumexp) - uniform) : A(0);
    for (int64_t i = 0; i < shape.columns; ++i)
      x[i] = store<T>(scale * (vector_exp(load(x[i]) - logsumexp) - uniform));
    for (int64_t i = shape.columns; i < shape.stride; ++i) x[i] = store<T>(A(0));
    if (!here) continue;
    if constexpr (!kIsHalf<T>) at_target = x[target];
    x[target] = store<T>(at_target - scale * static_cast<A>(operands.gradient.on_target));
  }
}

#define MPX_ROWS(replicas, T)                                                                                  \
  replicas void statistics_rows(const Operands<T>& operands, const LogitsShape& shape, int64_t b, int64_t e) { \
    statistics_loop(operands, shape, b, e);                                                                    \
  }                                                                                                            \
  replicas void backward_rows(const Operands<T>& operands, const LogitsShape& shape, int64_t b, int64_t e) {   \
    backward_loop(operands, shape, b, e);                                                                      \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

int64_t grain(const LogitsShape& shape) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.stride)); }

}  // namespace

template <class T>
void cross_entropy_statistics(const T* logits, const int64_t* targets, const RowStatistics<Wide<T>>& out,
                              const LogitsShape& shape) {
  const Operands<T> operands{const_cast<T*>(logits), targets, out, {}};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { statistics_rows(operands, shape, begin, end); });
}

template <class T>
void cross_entropy_backward(T* logits, const int64_t* targets, const CrossEntropyGradient<Wide<T>>& gradient,
                            const LogitsShape& shape) {
  const Operands<T> operands{logits, targets, {}, gradient};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { backward_rows(operands, shape, begin, end); });
}

#define MPX_INSTANTIATE(T)                                                                           \
  template void cross_entropy_statistics<T>(const T*, const int64_t*, const RowStatistics<Wide<T>>&, \
                                            const LogitsShape&);                                     \
  template void cross_entropy_backward<T>(T*, const int64_t*, const CrossEntropyGradient<Wide<T>>&,  \
                                          const LogitsShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
