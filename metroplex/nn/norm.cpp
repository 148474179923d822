#include "nn/norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "comm/autograd_node.h"
#include "cuda/kernels/norm.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

namespace kernels = cuda::kernels;

template <class T>
T* pointer(const at::Tensor& x) {
  return x.defined() ? x.data_ptr<T>() : nullptr;
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
  const at::Tensor wide = to_wide(x.detach()).contiguous();
  const kernels::NormShape shape{wide.numel() / spec_.width, spec_.width, spec_.epsilon, spec_.rms};
  at::Tensor out = at::empty_like(wide);
  at::Tensor mean = spec_.rms ? at::Tensor() : at::empty({shape.rows}, wide.options()),
             rstd = at::empty({shape.rows}, wide.options());
  const at::Tensor weight = to_wide(weight_.data), bias = to_wide(bias_.data);
  dispatch_wide(wide, [&](auto zero) {
    using T = decltype(zero);
    kernels::norm_forward<T>(pointer<T>(wide), pointer<T>(weight), pointer<T>(bias), pointer<T>(out),
                             pointer<T>(mean), pointer<T>(rstd), shape);
  });
  if (saved != nullptr) *saved = {x.detach(), mean, rstd};
  return out.to(x.scalar_type());
}

at::Tensor Norm::backward(const at::Tensor& dy, const NormSaved& saved) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide_dy = to_wide(dy).contiguous(), wide_x = to_wide(saved.x).contiguous();
  const kernels::NormShape shape{wide_x.numel() / spec_.width, spec_.width, spec_.epsilon, spec_.rms};
  at::Tensor dx = at::empty_like(wide_x), dweight = at::empty({spec_.width}, wide_x.options());
  at::Tensor dbias = spec_.rms ? at::Tensor() : at::empty_like(dweight);
  const at::Tensor weight = to_wide(weight_.data);
  dispatch_wide(wide_x, [&](auto zero) {
    using T = decltype(zero);
    kernels::norm_backward<T>(pointer<T>(wide_dy), pointer<T>(wide_x), pointer<T>(weight), pointer<T>(saved.mean),
                              pointer<T>(saved.rstd), {pointer<T>(dx), pointer<T>(dweight), pointer<T>(dbias)},
                              shape);
  });
  weight_.accumulate([&](at::Tensor& main_grad) { main_grad.add_(dweight); });
  if (dbias.defined()) bias_.accumulate([&](at::Tensor& main_grad) { main_grad.add_(dbias); });
  return dx.to(dy.scalar_type());
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
