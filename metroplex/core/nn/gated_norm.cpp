#include "nn/gated_norm.h"

#include <ATen/ATen.h>

#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {

GatedNorm::GatedNorm(const GatedNormSpec& spec, const LayerContext& context)
    : groups_(spec.groups), epsilon_(spec.epsilon) {
  const comm::Group& tp = context.tp;
  const topology::DimShard cut = topology::even_shard(0, topology::Axis::tp, spec.width, tp.size(), tp.index());
  weight_ = make_param(
      {spec.name + ".weight", {spec.width}, {.cuts = {cut}, .role = topology::Role::norm}, Init::ones}, context);
}

struct GatedNorm::Normalized {
  at::Tensor factor, gated, rstd;  // [s, b, width], [s, b, groups, columns], [s, b, groups, 1]
};

GatedNorm::Normalized GatedNorm::normalize(const at::Tensor& y, const at::Tensor& gate) const {
  Normalized out;
  out.factor = at::silu(to_wide(gate));
  out.gated = by_group(to_wide(y) * out.factor);
  out.rstd = (out.gated.square().mean(-1, /*keepdim=*/true) + epsilon_).rsqrt();
  return out;
}

at::Tensor GatedNorm::apply(const at::Tensor& y, const at::Tensor& gate) const {
  const Normalized x = normalize(y, gate);
  return ((x.gated * x.rstd).flatten(-2) * to_wide(weight_.data)).to(weight_.data.scalar_type());
}

// With g = dout weight and r = rstd: d(gated) = r (g - gated r^2 mean(g gated)).
GatedNorm::Gradients GatedNorm::backward(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate) {
  const Normalized x = normalize(y, gate);
  const at::Tensor wide = to_wide(dout), normed = x.gated * x.rstd;
  weight_.accumulate([dweight = (wide * normed.flatten(-2)).sum(at::IntArrayRef({0, 1}))](at::Tensor& main_grad) {
    main_grad.add_(dweight);
  });
  const at::Tensor dnormed = by_group(wide * to_wide(weight_.data));
  const at::Tensor dgated = ((dnormed - normed * (dnormed * normed).mean(-1, /*keepdim=*/true)) * x.rstd).flatten(-2);
  return {dgated * x.factor, at::silu_backward(dgated * to_wide(y), to_wide(gate))};
}

}  // namespace metroplex::nn
