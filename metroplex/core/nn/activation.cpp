#include "nn/activation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "base/error.h"
#include "kernels/column_sums.h"
#include "nn/linear.h"
#include "nn/matmul.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

bool is_wide(const at::Tensor& x) { return x.scalar_type() == acc_type(x.scalar_type()); }

at::Tensor bias_data(const Param* bias) { return bias != nullptr ? bias->data : at::Tensor(); }

// For fp32 and fp64 the bias is added to `x` in place.
at::Tensor run_forward(const at::Tensor& x, const at::Tensor& bias, const ActivationSpec& spec) {
  std::vector<int64_t> sizes = x.sizes().vec();
  if (spec.gated) sizes.back() /= 2;
  const kernels::ActivationShape shape{x.numel() / x.size(-1), sizes.back(), spec.kind, spec.gated, spec.limits};
  at::Tensor out = at::empty(sizes, x.options());
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(spec.target,
                   {"activation_forward",
                    {&x, &bias},
                    {is_wide(x) ? &x : nullptr, &out},
                    {{"kind", static_cast<int>(spec.kind)},
                     {"gated", spec.gated},
                     {"clamp", spec.limits.clamp},
                     {"offset", spec.limits.offset}}},
                   kernels::activation_forward<T>, kernels::activation_forward_cuda<T>, elements<T>(x),
                   elements<T>(bias), elements<T>(out), shape);
  });
  return out;
}

}  // namespace

kernels::Activation activation_kind(config::Choice<config::Activation> activation) {
  switch (activation) {
    case config::Activation::gelu:
      return kernels::Activation::gelu;
    case config::Activation::gelu_tanh:
      return kernels::Activation::gelu_tanh;
    case config::Activation::quick_gelu:
      return kernels::Activation::quick_gelu;
    case config::Activation::silu:
      return kernels::Activation::silu;
    case config::Activation::relu:
      return kernels::Activation::relu;
    case config::Activation::squared_relu:
      return kernels::Activation::squared_relu;
  }
  MPX_ASSERT(false, "activation ", activation);
}

ActivationSpec activation_spec(const config::Model& model, const device::Target& target) {
  return {activation_kind(model.activation),
          model.gated_linear_unit,
          target,
          {model.activation_func_clamp_value, model.glu_linear_offset}};
}

at::Tensor apply_activation(const at::Tensor& x, Param* bias, const ActivationSpec& spec, at::Tensor* saved) {
  const at::NoGradGuard no_grad;
  const at::Tensor data = x.detach().contiguous();
  const at::Tensor out = run_forward(data, bias_data(bias), spec);
  if (saved != nullptr) *saved = data;
  return out;
}

at::Tensor activation_saved(const at::Tensor& x, Param* bias) {
  const at::NoGradGuard no_grad;
  if (!is_wide(x)) return x.detach();
  at::Tensor wide = x.detach().contiguous();
  return bias != nullptr ? wide.add_(bias->data) : wide;
}

at::Tensor recomputed_activation(const at::Tensor& saved, Param* bias, const ActivationSpec& spec) {
  const at::NoGradGuard no_grad;
  return run_forward(saved.contiguous(), is_wide(saved) ? at::Tensor() : bias_data(bias), spec);
}

at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& saved, Param* bias,
                               const ActivationSpec& spec) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = saved.contiguous(), gradient = dy.to(x.scalar_type()).contiguous();
  const at::Tensor added = is_wide(x) ? at::Tensor() : bias_data(bias);
  const kernels::ActivationShape shape{x.numel() / x.size(-1), gradient.size(-1), spec.kind, spec.gated, spec.limits};
  const bool trains = bias != nullptr && !bias->frozen;
  at::Tensor dx = at::empty_like(x), lines;
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (trains && !spec.gated) {
      const int64_t count = spec.target.gpu() ? kernels::column_lines<T>({shape.rows, shape.width, shape.width}) : 1;
      lines = at::empty({count, shape.width}, x.options().dtype(acc_type(x.scalar_type())));
    }
    device::launch(spec.target,
                   {"activation_backward",
                    {&gradient, &x, &added},
                    {&dx, &lines},
                    {{"kind", static_cast<int>(spec.kind)},
                     {"gated", spec.gated},
                     {"clamp", spec.limits.clamp},
                     {"offset", spec.limits.offset}}},
                   kernels::activation_backward<T>, kernels::activation_backward_cuda<T>, elements<T>(gradient),
                   elements<T>(x), elements<T>(added), elements<T>(dx), elements<kernels::Wide<T>>(lines), shape);
  });
  if (trains && spec.gated) accumulate_bias_gradient(spec.target, *bias, dx);
  if (lines.defined()) accumulate_line_sums(spec.target, {{bias, lines}});
  return dx;
}

}  // namespace metroplex::nn
