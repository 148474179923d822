// The optimizer update of one element, shared by CPU loops and GPU threads, and the valid combinations of storage
// types.
#pragma once

#include <cmath>

#include "base/error.h"
#include "kernels/optimizer_step.h"

namespace metroplex::kernels {

// Not std::sqrt, whose wrapper prevents vectorization.
template <class T>
constexpr MPX_INLINE T square_root(T x) {
  if constexpr (sizeof(T) == sizeof(float)) return ::sqrtf(x);
  return ::sqrt(x);
}

// An update is called as update(g, p, m, v); kMoments is the number of moments (m, v) that it reads and writes.
template <class T>
struct AdamUpdate {
  using Scalar = T;
  static constexpr int kMoments = 2;
  T factor, keep, beta1, rest1, beta2, rest2, unbias, eps, step_size;

  constexpr AdamUpdate(const AdamHyper& h, const StepValues& step, const GroupRates& rates)
      : factor(static_cast<T>(step.grad_factor)),
        keep(static_cast<T>(rates.keep)),
        beta1(static_cast<T>(h.beta1)),
        rest1(static_cast<T>(1 - h.beta1)),
        beta2(static_cast<T>(h.beta2)),
        rest2(static_cast<T>(1 - h.beta2)),
        unbias(static_cast<T>(rates.unbias)),
        eps(static_cast<T>(h.eps)),
        step_size(static_cast<T>(rates.step_size)) {}

  constexpr MPX_INLINE void operator()(T g, T& p, T& m, T& v) const {
    g *= factor;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    p = p * keep - step_size * m / (square_root(v) * unbias + eps);
  }
};

template <class T, bool with_momentum>
struct SgdUpdate {
  using Scalar = T;
  static constexpr int kMoments = with_momentum ? 1 : 0;
  T factor, decay, momentum, lr;
  bool first_step;

  constexpr SgdUpdate(const SgdHyper& h, const StepValues& step, const GroupRates& rates)
      : factor(static_cast<T>(step.grad_factor)),
        decay(static_cast<T>(rates.weight_decay)),
        momentum(static_cast<T>(h.momentum)),
        lr(static_cast<T>(rates.lr)),
        first_step(step.number == 1) {}

  constexpr MPX_INLINE void operator()(T g, T& p, T& m, T& /*v*/) const {
    g = g * factor + decay * p;
    if constexpr (with_momentum) g = m = first_step ? g : momentum * m + g;
    p -= lr * g;
  }
};

template <class T>
struct LionUpdate {
  using Scalar = T;
  static constexpr int kMoments = 1;
  T factor, keep, beta1, rest1, beta2, rest2, lr;

  constexpr LionUpdate(const LionHyper& h, const StepValues& step, const GroupRates& rates)
      : factor(static_cast<T>(step.grad_factor)),
        keep(static_cast<T>(rates.keep)),
        beta1(static_cast<T>(h.beta1)),
        rest1(static_cast<T>(1 - h.beta1)),
        beta2(static_cast<T>(h.beta2)),
        rest2(static_cast<T>(1 - h.beta2)),
        lr(static_cast<T>(rates.lr)) {}

  constexpr MPX_INLINE void operator()(T g, T& p, T& m, T& /*v*/) const {
    g *= factor;
    const T c = beta1 * m + rest1 * g;
    const T step = c > T(0) ? lr : (c < T(0) ? -lr : T(0));
    p = p * keep - step;
    m = beta2 * m + rest2 * g;
  }
};

// Asserts valid combinations of storage types; a violation is an internal bug.
inline void check_range(const OptimizerRange& r, int num_moments) {
  const bool wide = r.remainder == nullptr && r.main_number == Number::f64;
  MPX_ASSERT(r.n >= 0, "a range of ", r.n, " elements");
  MPX_ASSERT((r.main == nullptr) == (r.remainder != nullptr) || r.n == 0, "main or remainder, and not both");
  MPX_ASSERT(r.remainder == nullptr || (r.param_number == Number::bf16 && r.param != nullptr) || r.n == 0,
             "a remainder is that of a bf16 parameter");
  MPX_ASSERT(r.remainder != nullptr || wide || r.main_number == Number::f32 || r.main_number == Number::bf16,
             "a main parameter is f32, f64 or bf16");
  MPX_ASSERT((r.grad_number == Number::f64) == wide && r.grad_number != Number::block8,
             "a gradient is f32, bf16 or f16, and f64 with an f64 main parameter");
  MPX_ASSERT(r.param == nullptr || (!wide && r.param_number != Number::f64 && r.param_number != Number::block8),
             "a written parameter is f32, bf16 or f16, with an f32 or bf16 main parameter");
  const MomentArray* moments[] = {&r.first, &r.second};
  for (int i = 0; i < num_moments; ++i) {
    const MomentArray& m = *moments[i];
    MPX_ASSERT(m.data != nullptr || r.n == 0, "moment ", i, " of the ", num_moments, " that are read is missing");
    MPX_ASSERT((m.number == Number::f64) == wide && m.number != Number::f16,
               "a moment is f32, bf16 or block8, and f64 with an f64 main parameter");
    MPX_ASSERT(m.number != Number::block8 || m.scales != nullptr || r.n == 0, "block8 has scales");
  }
}

// Calls run.template operator()<Update>() with the update in the arithmetic type of the range.
template <class Run>
void with_update(const OptimizerRange& range, const AdamHyper&, const Run& run) {
  check_range(range, 2);
  range.main_number == Number::f64&& range.remainder == nullptr ? run.template operator()<AdamUpdate<double>>()
                                                                : run.template operator()<AdamUpdate<float>>();
}
template <class Run>
void with_update(const OptimizerRange& range, const LionHyper&, const Run& run) {
  check_range(range, 1);
  range.main_number == Number::f64&& range.remainder == nullptr ? run.template operator()<LionUpdate<double>>()
                                                                : run.template operator()<LionUpdate<float>>();
}
template <class Run>
void with_update(const OptimizerRange& range, const SgdHyper& hyper, const Run& run) {
  check_range(range, hyper.momentum == 0 ? 0 : 1);
  const bool wide = range.main_number == Number::f64 && range.remainder == nullptr;
  if (hyper.momentum == 0) {
    wide ? run.template operator()<SgdUpdate<double, false>>() : run.template operator()<SgdUpdate<float, false>>();
  } else {
    wide ? run.template operator()<SgdUpdate<double, true>>() : run.template operator()<SgdUpdate<float, true>>();
  }
}

}  // namespace metroplex::kernels
