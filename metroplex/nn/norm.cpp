#include "nn/norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "cuda/kernels/norm.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

namespace kernels = cuda::kernels;

// Half parameters give a half result even where the residual stream x is fp32.
at::ScalarType out_type(const at::Tensor& x, const at::Tensor& weight) {
  return wide_type(weight.scalar_type()) == weight.scalar_type() ? x.scalar_type() : weight.scalar_type();
}

// Calls body(In{}, Out{}).
template <class Body>
void dispatch_pair(at::ScalarType in, at::ScalarType out, const Body& body) {
  dispatch_element(out, [&](auto narrow) {
    if (in == out) {
      body(narrow, narrow);
    } else if constexpr (kernels::kIsHalf<decltype(narrow)>) {
      MPX_ASSERT(in == at::kFloat, "a residual stream is of the type of the parameters or fp32");
      body(float{}, narrow);
    }
  });
}

}  // namespace

Norm::Norm(const NormSpec& spec, const LayerContext& context) : spec_(spec) {
  weight_ = make_param({spec.name + ".weight", {spec.width}, {}, Init::ones, 0}, context);
  weight_.partial_grad_over_tp = spec.partial_grad_over_tp;
  if (!spec.rms) {
    bias_ = make_param({spec.name + ".bias", {spec.width}, {}, Init::zeros, 0}, context);
    bias_.partial_grad_over_tp = spec.partial_grad_over_tp;
  }
}

at::Tensor Norm::apply(const at::Tensor& x, NormSaved* saved) const {
  const at::NoGradGuard no_grad;
  const at::Tensor data = x.detach().contiguous();
  const kernels::NormShape shape{data.numel() / spec_.width, spec_.width, spec_.epsilon, spec_.rms};
  const at::ScalarType dtype = out_type(data, weight_.data);
  const auto statistics = data.options().dtype(wide_type(data.scalar_type()));
  at::Tensor out = at::empty(data.sizes(), data.options().dtype(dtype));
  at::Tensor mean = spec_.rms ? at::Tensor() : at::empty({shape.rows}, statistics),
             rstd = at::empty({shape.rows}, statistics);
  const at::Tensor weight = to_wide(weight_.data), bias = to_wide(bias_.data);
  dispatch_pair(data.scalar_type(), dtype, [&](auto in, auto narrow) {
    using In = decltype(in);
    using Out = decltype(narrow);
    using T = kernels::Wide<In>;
    kernels::norm_forward<In, Out>(elements<In>(data), elements<T>(weight), elements<T>(bias), elements<Out>(out),
                                   elements<T>(mean), elements<T>(rstd), shape);
  });
  if (saved != nullptr) *saved = {x.detach(), mean, rstd};
  return out;
}

at::Tensor Norm::backward(const at::Tensor& dy, const NormSaved& saved) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = saved.x.contiguous();
  const at::ScalarType dtype = out_type(x, weight_.data);
  const at::Tensor gradient = dy.to(dtype).contiguous(), weight = to_wide(weight_.data);
  const kernels::NormShape shape{x.numel() / spec_.width, spec_.width, spec_.epsilon, spec_.rms};
  at::Tensor dx = at::empty_like(x), dweight = at::empty({spec_.width}, weight.options());
  at::Tensor dbias = spec_.rms ? at::Tensor() : at::empty_like(dweight);
  dispatch_pair(x.scalar_type(), dtype, [&](auto in, auto narrow) {
    using In = decltype(in);
    using Out = decltype(narrow);
    using T = kernels::Wide<In>;
    kernels::norm_backward<In, Out>(elements<Out>(gradient), elements<In>(x), elements<T>(weight),
                                    elements<T>(saved.mean), elements<T>(saved.rstd),
                                    {elements<In>(dx), elements<T>(dweight), elements<T>(dbias)}, shape);
  });
  weight_.accumulate([&](at::Tensor& main_grad) { main_grad.add_(dweight); });
  if (dbias.defined()) bias_.accumulate([&](at::Tensor& main_grad) { main_grad.add_(dbias); });
  return dx;
}

at::Tensor Norm::forward(const at::Tensor& x) {
  NormSaved saved;
  at::Tensor out = apply(x, &saved);
  return comm::attach(out, {x},
                      [this, saved](const at::Tensor& dy) -> comm::Gradients { return {backward(dy, saved)}; });
}

void Norm::collect_params(std::vector<Param*>& params) {
  params.push_back(&weight_);
  if (!spec_.rms) params.push_back(&bias_);
}

}  // namespace metroplex::nn
