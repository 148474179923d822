// Activation of an MLP fused with the bias of its first layer: f(x + b), or f(gate) * up for gated units.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/model.h"
#include "kernels/activation.h"
#include "device/launch_point.h"
#include "nn/param.h"

namespace metroplex::nn {

kernels::Activation activation_kind(config::Choice<config::Activation> activation);

// The activation between the two matrix products of a dense MLP or of experts (ExpertRowKernels in moe/experts.h).
struct ActivationSpec {
  kernels::Activation kind = kernels::Activation::gelu;
  bool gated = false;
  device::Target target;
  kernels::UnitLimits limits = {};
};
ActivationSpec activation_spec(const config::Model& model, const device::Target& target);

// Maps x [..., width], or [..., 2 width] if gated ([gate; up]), to [..., width], without autograd. Overwrites x,
// which must be a temporary that no other code reads. `bias` may be null. If `saved` is not null, it receives the
// input of backward and recomputation: x + b for fp32 and fp64, x itself for half types. Recomputing the result from
// it gives the same bits.
at::Tensor apply_activation(const at::Tensor& x, Param* bias, const ActivationSpec& spec, at::Tensor* saved);
// Recomputation: activation_saved() derives `saved` from a recomputed x; recomputed_activation() derives the result.
at::Tensor activation_saved(const at::Tensor& x, Param* bias);
at::Tensor recomputed_activation(const at::Tensor& saved, Param* bias, const ActivationSpec& spec);
// Returns the gradient of x; adds the bias gradient to bias->main_grad.
at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& saved, Param* bias,
                               const ActivationSpec& spec);

}  // namespace metroplex::nn
