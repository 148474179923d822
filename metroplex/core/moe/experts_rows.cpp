#include "moe/experts.h"

#include <ATen/ATen.h>

#include "kernels/expert_rows.h"
#include "nn/wide.h"

namespace metroplex::moe {
using nn::dispatch_element, nn::elements, kernels::Wide;

namespace {

const int64_t* counts_of(const at::Tensor& counts) { return static_cast<const int64_t*>(counts.mutable_data_ptr()); }

kernels::ExpertShape shape_of(const at::Tensor& x, const at::Tensor& counts) {
  return {.experts = counts.numel(), .rows = x.size(0), .width = x.size(1)};
}

}  // namespace

at::Tensor ExpertRowKernels::activation(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& probs,
                                        const at::Tensor& counts) const {
  const at::Tensor out = at::empty({x.size(0), spec_.gated ? x.size(1) / 2 : x.size(1)}, x.options());
  kernels::ExpertShape shape = shape_of(out, counts);
  shape.kind = spec_.kind, shape.gated = spec_.gated, shape.limits = spec_.limits;
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(spec_.target,
                   {"expert_activation",
                    {&x, &bias, &probs, &counts},
                    {&out},
                    {{"kind", static_cast<int>(spec_.kind)},
                     {"gated", spec_.gated},
                     {"clamp", spec_.limits.clamp},
                     {"offset", spec_.limits.offset}}},
                   kernels::expert_activation<T>, kernels::expert_activation_cuda<T>, elements<T>(x),
                   elements<T>(bias), elements<Wide<T>>(probs), counts_of(counts), elements<T>(out), shape);
  });
  return out;
}

at::Tensor ExpertRowKernels::activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                                 const at::Tensor& probs, const at::Tensor& counts,
                                                 const at::Tensor& dprobs) const {
  const at::Tensor dx = at::empty_like(x);
  kernels::ExpertShape shape = shape_of(dy, counts);
  shape.kind = spec_.kind, shape.gated = spec_.gated, shape.limits = spec_.limits;
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::ExpertActivationGradient<T> g{elements<T>(dy),   elements<T>(x),
                                                 elements<T>(bias), elements<Wide<T>>(probs),
                                                 elements<T>(dx),   elements<Wide<T>>(dprobs)};
    device::launch(spec_.target,
                   {"expert_activation_backward",
                    {&dy, &x, &bias, &probs, &counts},
                    {&dx, &dprobs},
                    {{"kind", static_cast<int>(spec_.kind)},
                     {"gated", spec_.gated},
                     {"clamp", spec_.limits.clamp},
                     {"offset", spec_.limits.offset}}},
                   kernels::expert_activation_backward<T>, kernels::expert_activation_backward_cuda<T>, g,
                   counts_of(counts), shape);
  });
  return dx;
}

void ExpertRowKernels::add_bias(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& probs,
                                const at::Tensor& counts) const {
  dispatch_element(y.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(spec_.target, {"expert_bias", {&y, &bias, &probs, &counts}, {&y}}, kernels::expert_bias<T>,
                   kernels::expert_bias_cuda<T>, elements<T>(y), elements<T>(bias), elements<Wide<T>>(probs),
                   counts_of(counts), shape_of(y, counts));
  });
}

void ExpertRowKernels::add_bias_probs(const at::Tensor& dprobs, const at::Tensor& dy, const at::Tensor& bias,
                                      const at::Tensor& counts) const {
  dispatch_element(dy.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(spec_.target, {"expert_bias_probs", {&dprobs, &dy, &bias, &counts}, {&dprobs}},
                   kernels::expert_bias_probs<T>, kernels::expert_bias_probs_cuda<T>, elements<T>(dy),
                   elements<T>(bias), counts_of(counts), elements<Wide<T>>(dprobs), shape_of(dy, counts));
  });
}

void ExpertRowKernels::add_sums(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& probs,
                                const at::Tensor& counts) const {
  const at::ScalarType wide = nn::acc_type(x.scalar_type());
  const bool direct = gradient.scalar_type() == wide;
  const at::Tensor sums = direct ? gradient : at::zeros(gradient.sizes(), gradient.options().dtype(wide));
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(spec_.target, {"expert_sums", {&sums, &x, &probs, &counts}, {&sums}}, kernels::expert_sums<T>,
                   kernels::expert_sums_cuda<T>, elements<T>(x), elements<Wide<T>>(probs), counts_of(counts),
                   elements<Wide<T>>(sums), shape_of(x, counts));
  });
  if (!direct) gradient.add_(sums);
}

at::Tensor ExpertRowKernels::scale(const at::Tensor& x, const at::Tensor& probs, const at::Tensor& counts) const {
  const at::Tensor out = at::empty_like(x);
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(spec_.target, {"expert_scale", {&x, &probs, &counts}, {&out}}, kernels::expert_scale<T>,
                   kernels::expert_scale_cuda<T>, elements<T>(x), elements<Wide<T>>(probs), counts_of(counts),
                   elements<T>(out), shape_of(x, counts));
  });
  return out;
}

at::Tensor ExpertRowKernels::scale_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& probs,
                                            const at::Tensor& counts, const at::Tensor& dprobs) const {
  const at::Tensor dx = at::empty_like(x);
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::ExpertActivationGradient<T> g{elements<T>(dy), elements<T>(x),
                                                 nullptr,         elements<Wide<T>>(probs),
                                                 elements<T>(dx), elements<Wide<T>>(dprobs)};
    device::launch(spec_.target, {"expert_scale_backward", {&dy, &x, &probs, &counts}, {&dx, &dprobs}},
                   kernels::expert_scale_backward<T>, kernels::expert_scale_backward_cuda<T>, g, counts_of(counts),
                   shape_of(x, counts));
  });
  return dx;
}

}  // namespace metroplex::moe
