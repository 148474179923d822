// torch.optim.SGD: weight decay is added to the gradient; the momentum buffer starts as the first gradient. Without
// momentum `first` is unused.
#pragma once

#include "kernels/step_state.h"
#include "kernels/vector_math.h"

namespace metroplex::kernels {

struct SgdHyper {
  double momentum = 0;
};

// Updates one element: update(g, p, m, v). kMoments is the number of moments (m, v) that it reads and writes.
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

}  // namespace metroplex::kernels
