// Lion (Chen et al., arXiv:2302.06675): p -= lr sign(beta1 m + (1 - beta1) g), with decoupled weight decay; then m =
// beta2 m + (1 - beta2) g.
#pragma once

#include "kernels/step_state.h"
#include "kernels/vector_math.h"

namespace metroplex::kernels {

struct LionHyper {
  double beta1 = 0.9, beta2 = 0.99;
};

// Updates one element: update(g, p, m, v). kMoments is the number of moments (m, v) that it reads and writes.
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

}  // namespace metroplex::kernels
