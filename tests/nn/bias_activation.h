// The activation as one autograd node for a test's graph.
#pragma once

#include "nn/autograd_node.h"
#include "nn/activation.h"

namespace metroplex::test {

// As nn::apply_activation; adds the gradient of the bias to bias->main_grad.
inline at::Tensor bias_activation(const at::Tensor& x, nn::Param* bias, const nn::ActivationSpec& spec) {
  at::Tensor saved;
  const at::Tensor out = nn::apply_activation(x, bias, spec, &saved);
  return nn::attach(out, {x}, [saved, bias, spec](const at::Tensor& dy) -> nn::Gradients {
    return {nn::activation_backward(dy, saved, bias, spec)};
  });
}

}  // namespace metroplex::test
