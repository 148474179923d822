// AdamW (Loshchilov & Hutter, arXiv:1711.05101) as in torch.optim.AdamW: decay, moments, then
// p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
#pragma once

#include <cmath>

#include "kernels/step_state.h"
#include "kernels/vector_math.h"

namespace metroplex::kernels {

struct AdamHyper {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // GroupRates is computed from the same betas
};

// Replaces std::sqrt, whose wrapper prevents vectorization.
template <class T>
constexpr MPX_INLINE T square_root(T x) {
  if constexpr (sizeof(T) == sizeof(float)) return ::sqrtf(x);
  return ::sqrt(x);
}

// Updates one element: update(g, p, m, v). kMoments is the number of moments (m, v) that it reads and writes.
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

}  // namespace metroplex::kernels
