#include "nn/activation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "nn/linear.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

namespace kernels = cuda::kernels;

struct NamedActivation {
  const char* name;
  kernels::Activation kind;
};
constexpr NamedActivation kActivations[] = {{"gelu", kernels::Activation::gelu},
                                            {"gelu_tanh", kernels::Activation::gelu_tanh},
                                            {"silu", kernels::Activation::silu},
                                            {"relu", kernels::Activation::relu},
                                            {"squared_relu", kernels::Activation::squared_relu}};

bool is_wide(const at::Tensor& x) { return x.scalar_type() == wide_type(x.scalar_type()); }

at::Tensor wide_data(const Param* bias) { return bias != nullptr ? to_wide(bias->data) : at::Tensor(); }

// `wide` gets the bias in place.
at::Tensor run_forward(const at::Tensor& wide, const at::Tensor& bias, const ActivationSpec& spec) {
  std::vector<int64_t> sizes = wide.sizes().vec();
  if (spec.gated) sizes.back() /= 2;
  const kernels::ActivationShape shape{wide.numel() / wide.size(-1), sizes.back(), spec.kind, spec.gated};
  at::Tensor out = at::empty(sizes, wide.options());
  dispatch_wide(wide, [&](auto zero) {
    using T = decltype(zero);
    kernels::activation_forward<T>(wide.mutable_data_ptr<T>(), bias.defined() ? bias.const_data_ptr<T>() : nullptr,
                                   out.mutable_data_ptr<T>(), shape);
  });
  return out;
}

}  // namespace

kernels::Activation activation_from_name(const std::string& name) {
  for (const auto& [known, kind] : kActivations) {
    if (name == known) return kind;
  }
  MPX_CHECK(false, "nn", "model.activation = '", name,
            "' is unknown; use gelu, gelu_tanh, silu, relu or squared_relu");
  return kernels::Activation::gelu;
}

at::Tensor apply_activation(const at::Tensor& x, Param* bias, const ActivationSpec& spec, at::Tensor* saved) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = to_wide(x.detach()).contiguous();
  const at::Tensor out = run_forward(wide, wide_data(bias), spec);
  if (saved != nullptr) *saved = is_wide(x) ? wide : x.detach();
  return out.to(x.scalar_type());
}

at::Tensor activation_saved(const at::Tensor& x, Param* bias) {
  const at::NoGradGuard no_grad;
  if (!is_wide(x)) return x.detach();
  at::Tensor wide = x.detach().contiguous();
  return bias != nullptr ? wide.add_(bias->data) : wide;
}

at::Tensor activation_again(const at::Tensor& saved, Param* bias, const ActivationSpec& spec) {
  const at::NoGradGuard no_grad;
  if (is_wide(saved)) return run_forward(saved, {}, spec);
  return run_forward(to_wide(saved).contiguous(), wide_data(bias), spec).to(saved.scalar_type());
}

at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& saved, Param* bias,
                               const ActivationSpec& spec) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide_dy = to_wide(dy).contiguous();
  at::Tensor x = to_wide(saved).contiguous();
  if (!is_wide(saved) && bias != nullptr) x.add_(wide_data(bias));
  const kernels::ActivationShape shape{x.numel() / x.size(-1), wide_dy.size(-1), spec.kind, spec.gated};
  at::Tensor dx = at::empty_like(x);
  dispatch_wide(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::activation_backward<T>(wide_dy.const_data_ptr<T>(), x.const_data_ptr<T>(), dx.mutable_data_ptr<T>(),
                                    shape);
  });
  dx = dx.to(dy.scalar_type());
  if (bias != nullptr) accumulate_bias_gradient(*bias, dx);
  return dx;
}

at::Tensor bias_activation(const at::Tensor& x, Param* bias, const ActivationSpec& spec) {
  at::Tensor saved;
  const at::Tensor out = apply_activation(x, bias, spec, &saved);
  return comm::attach(out, {x}, [saved, bias, spec](const at::Tensor& dy) -> comm::Gradients {
    return {activation_backward(dy, saved, bias, spec)};
  });
}

}  // namespace metroplex::nn
