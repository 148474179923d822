// The activation of an MLP with the bias of its first layer: f(x + b), or f(gate) * up for gated units.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/model.h"
#include "cuda/kernels/activation.h"
#include "cuda/launch_point.h"
#include "nn/param.h"

namespace metroplex::nn {

// The kernels' enumerator for it.
cuda::kernels::Activation activation_kind(config::Choice<config::Activation> activation);

// What a dense MLP and the experts of a layer (ExpertRowKernels of moe/experts.h) run between their two products.
struct ActivationSpec {
  cuda::kernels::Activation kind = cuda::kernels::Activation::gelu;
  bool gated = false;
  cuda::Target target;
  cuda::kernels::UnitLimits limits = {};
};
ActivationSpec activation_spec(const config::Model& model, const cuda::Target& target);

// x [..., width] or [..., 2 width] when gated ([gate; up]) -> [..., width], without autograd. Overwrites x, which
// must be a fresh result that no one else reads. `bias` may be null. `saved` (may be null) gets what backward and
// recomputation need: x + b for a wide type, x itself for a half type; from either the result is recomputed bit for
// bit.
at::Tensor apply_activation(const at::Tensor& x, Param* bias, const ActivationSpec& spec, at::Tensor* saved);
// Recomputation: `saved` from a fresh x, and the result from `saved`.
at::Tensor activation_saved(const at::Tensor& x, Param* bias);
at::Tensor recomputed_activation(const at::Tensor& saved, Param* bias, const ActivationSpec& spec);
// The gradient of x; that of the bias goes to bias->main_grad.
at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& saved, Param* bias,
                               const ActivationSpec& spec);

}  // namespace metroplex::nn
