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

}  // namespace

kernels::Activation activation_from_name(const std::string& name) {
  for (const auto& [known, kind] : kActivations) {
    if (name == known) return kind;
  }
  MPX_CHECK(false, "nn", "model.activation = '", name,
            "' is unknown; use gelu, gelu_tanh, silu, relu or squared_relu");
  return kernels::Activation::gelu;
}

at::Tensor bias_activation(const at::Tensor& x_fresh, Param* bias, const ActivationSpec& spec) {
  const at::Tensor x = to_wide(x_fresh.detach()).contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  if (spec.gated) sizes.back() /= 2;
  const kernels::ActivationShape shape{x.numel() / x.size(-1), sizes.back(), spec.kind, spec.gated};
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = at::empty(sizes, x.options());
    const at::Tensor wide_bias = bias != nullptr ? to_wide(bias->data) : at::Tensor();
    dispatch_wide(x, [&](auto zero) {
      using T = decltype(zero);
      kernels::activation_forward<T>(x.mutable_data_ptr<T>(),
                                     wide_bias.defined() ? wide_bias.const_data_ptr<T>() : nullptr,
                                     out.mutable_data_ptr<T>(), shape);
    });
    out = out.to(x_fresh.scalar_type());
  }
  return comm::attach(out, {x_fresh},
                      [x = x.to(x_fresh.scalar_type()), bias, shape](const at::Tensor& dy) -> comm::Gradients {
                        const at::NoGradGuard no_grad;
                        const at::Tensor wide_dy = to_wide(dy).contiguous(), wide_x = to_wide(x);
                        at::Tensor dx = at::empty_like(wide_x);
                        dispatch_wide(wide_x, [&](auto zero) {
                          using T = decltype(zero);
                          kernels::activation_backward<T>(wide_dy.const_data_ptr<T>(), wide_x.const_data_ptr<T>(),
                                                          dx.mutable_data_ptr<T>(), shape);
                        });
                        dx = dx.to(dy.scalar_type());
                        if (bias != nullptr) accumulate_bias_gradient(*bias, dx);
                        return {dx};
                      });
}

}  // namespace metroplex::nn
