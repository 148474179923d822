// Gradients of a layer against central differences of step h = 1e-5 along one direction. The differences are off by
// h^2 times the third derivative, and by 2^-53 / h times the sum of about a hundred results of size 1.
#pragma once

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "nn/tools.h"

namespace metroplex::test {

// loss() computes the loss from the current `values`, which are restored.
template <class Loss>
void expect_finite_difference(const std::string& name, const at::Tensor& gradient, at::Tensor values,
                              const Loss& loss) {
  constexpr double kStep = 1e-5, kDifference = 1e-7;
  const at::NoGradGuard no_grad;
  const at::Tensor direction = sample(values.sizes().vec(), 3);
  const auto moved = [&](double step) {
    values.add_(direction, step);
    const double result = loss();
    values.sub_(direction, step);
    return result;
  };
  const double expected = (moved(kStep) - moved(-kStep)) / (2 * kStep);
  EXPECT_NEAR((gradient * direction).sum().item<double>(), expected, kDifference * std::max(1.0, std::abs(expected)))
      << name;
  EXPECT_GT(std::abs(expected), 1e-6) << name << ": shows nothing";
}

}  // namespace metroplex::test
