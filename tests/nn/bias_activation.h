// The activation as one node of autograd, as a test's own graph takes it.
#pragma once

#include "nn/autograd_node.h"
#include "nn/activation.h"

namespace metroplex::test {

// As nn::apply_activation; the gradient of the bias goes to bias->main_grad.
inline at::Tensor bias_activation(const at::Tensor& x, nn::Param* bias, const nn::ActivationSpec& spec) {
  at::Tensor saved;
  const at::Tensor out = nn::apply_activation(x, bias, spec, &saved);
  return nn::attach(out, {x}, [saved, bias, spec](const at::Tensor& dy) -> nn::Gradients {
    return {nn::activation_backward(dy, saved, bias, spec)};
  });
}

}  // namespace metroplex::test
