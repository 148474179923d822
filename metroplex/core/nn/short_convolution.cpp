#include "nn/short_convolution.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

std::vector<int64_t> local_channels(const ShortConvolutionSpec& spec, const comm::Group& tp) {
  std::vector<int64_t> local;
  for (const ShortConvolutionSpec::Channels& region : spec.regions) local.push_back(region.count / tp.size());
  return local;
}

topology::Placement channel_placement(const ShortConvolutionSpec& spec, const comm::Group& tp,
                                      const std::string& suffix) {
  topology::Placement placement;
  std::vector<int64_t> sections;
  int64_t begin = 0;
  for (const ShortConvolutionSpec::Channels& region : spec.regions) {
    placement.regions.push_back({spec.name + suffix + "." + region.name, 0, begin, region.count});
    sections.push_back(region.count);
    begin += region.count;
  }
  placement.cuts = {topology::even_shards(0, topology::Axis::tp, sections, tp.size(), tp.index())};
  return placement;
}

}  // namespace

ShortConvolution::ShortConvolution(const ShortConvolutionSpec& spec, const LayerContext& context)
    : kernel_(spec.kernel), silu_(spec.silu), exchange_(local_channels(spec, context.tp), context.cp) {
  int64_t channels = 0;
  for (const ShortConvolutionSpec::Channels& region : spec.regions) channels += region.count;
  weight_ = make_param({spec.name + ".weight",
                        {channels, 1, spec.kernel},
                        channel_placement(spec, context.tp, ".weight"),
                        Init::uniform_fan_in},
                       context);
  if (!spec.bias) return;
  topology::Placement placement = channel_placement(spec, context.tp, ".bias");
  placement.role = topology::Role::bias;
  bias_ = std::make_unique<Param>(make_param({spec.name + ".bias", {channels}, placement, Init::zeros}, context));
}

// The inputs of a call, k - 1 rows of earlier inputs first.
struct ShortConvolution::Taps {
  at::Tensor x;    // [k - 1 + s, b, c]
  at::Tensor ids;  // [k - 1 + s, b, 1], or undefined
  int64_t kernel, s;

  Taps(const at::Tensor& rows, const at::Tensor& previous, const at::Tensor& document_ids, int64_t kernel)
      : kernel(kernel), s(rows.size(0)) {
    const int64_t before = kernel - 1;
    const at::Tensor wide = to_wide(rows);
    x = at::cat(
        {previous.defined() ? previous : at::zeros({before, rows.size(1), rows.size(2)}, wide.options()), wide}, 0);
    if (!document_ids.defined()) return;
    const at::Tensor padded = at::constant_pad_nd(document_ids, {before, 0});
    ids = padded.narrow(1, padded.size(1) - before - s, before + s).t().unsqueeze(2);
  }
  at::Tensor shifted(int64_t j) const { return x.narrow(0, j, s); }
  // y with zeros in rows whose input j belongs to another document.
  at::Tensor mask(const at::Tensor& y, int64_t j) const {
    if (!ids.defined()) return y;
    return at::mul(y, at::eq(ids.narrow(0, j, s), ids.narrow(0, kernel - 1, s)));
  }
};

at::Tensor ShortConvolution::weight() const { return to_wide(exchange_.share(weight_.data)); }

at::Tensor ShortConvolution::sum_taps(const Taps& taps) const {
  const at::Tensor factors = weight();
  at::Tensor sum = at::mul(taps.shifted(kernel_ - 1), factors.select(2, kernel_ - 1).squeeze(1));
  for (int64_t j = 0; j + 1 < kernel_; ++j)
    sum.addcmul_(taps.mask(taps.shifted(j), j), factors.select(2, j).squeeze(1));
  if (bias_) sum.add_(exchange_.share(bias_->data));
  return sum;
}

at::Tensor ShortConvolution::apply(const at::Tensor& x, const at::Tensor& document_ids, at::Tensor* cached) const {
  const at::NoGradGuard no_grad;
  const Taps taps(x, cached != nullptr ? *cached : at::Tensor(), document_ids, kernel_);
  if (cached != nullptr) *cached = taps.x.narrow(0, taps.s, kernel_ - 1).clone();
  at::Tensor sum = sum_taps(taps);
  if (silu_) at::silu_(sum);
  return sum.to(x.scalar_type());
}

at::Tensor ShortConvolution::backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& document_ids) {
  const at::NoGradGuard no_grad;
  const Taps taps(x, {}, document_ids, kernel_);
  const at::Tensor wide = to_wide(dy), dsum = silu_ ? at::silu_backward(wide, sum_taps(taps)) : wide;
  const at::Tensor factors = weight(), dx = at::zeros_like(taps.x), dweight = at::empty_like(factors);
  for (int64_t j = 0; j < kernel_; ++j) {
    const at::Tensor masked = taps.mask(dsum, j);
    dweight.select(2, j).squeeze(1).copy_(at::mul(masked, taps.shifted(j)).sum(at::IntArrayRef({0, 1})));
    dx.narrow(0, j, taps.s).addcmul_(masked, factors.select(2, j).squeeze(1));
  }
  exchange_.accumulate(weight_, dweight);
  if (bias_) exchange_.accumulate(*bias_, dsum.sum(at::IntArrayRef({0, 1})));
  return dx.narrow(0, kernel_ - 1, taps.s).to(x.scalar_type());
}

void ShortConvolution::collect_params(std::vector<Param*>& params) {
  params.push_back(&weight_);
  if (bias_) params.push_back(bias_.get());
}

}  // namespace metroplex::nn
