// The activation of an MLP with the bias of its first layer: f(x + b), or f(gate) * up for gated units.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cuda/kernels/activation.h"
#include "nn/param.h"

namespace metroplex::nn {

// gelu (exact erf) | gelu_tanh | silu | relu | squared_relu. Throws on other names.
cuda::kernels::Activation activation_from_name(const std::string& name);

struct ActivationSpec {
  cuda::kernels::Activation kind = cuda::kernels::Activation::gelu;
  bool gated = false;
};

// x [..., width] or [..., 2 width] when gated ([gate; up]) -> [..., width]. Overwrites x, which must be a fresh
// result that no one else reads. `bias` may be null; its gradient goes to bias->main_grad.
at::Tensor bias_activation(const at::Tensor& x, Param* bias, const ActivationSpec& spec);

}  // namespace metroplex::nn
