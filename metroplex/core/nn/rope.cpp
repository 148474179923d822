#include "nn/rope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/rope.h"
#include "nn/wide.h"

namespace metroplex::nn {

namespace {

at::Tensor scale_frequencies(const at::Tensor& frequencies, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequencies;
  const at::Tensor wavelengths = 2 * M_PI / frequencies;
  const at::Tensor unscaled =
      ((static_cast<double>(scaling.positions) / wavelengths - scaling.low) / (scaling.high - scaling.low))
          .clamp(0, 1);
  return frequencies * (unscaled + (1 - unscaled) / scaling.factor);
}

// Returns the (fractional) index of the pair that rotates `turns` times over YaRN's original positions.
double pair_index(double turns, const RopeSpec& rope) {
  const auto positions = static_cast<double>(rope.yarn.positions);
  return static_cast<double>(rope.dims) * std::log(positions / (turns * 2 * M_PI)) / (2 * std::log(rope.base));
}

at::Tensor apply_yarn(const at::Tensor& frequencies, const RopeSpec& rope) {
  const RopeYarn& y = rope.yarn;
  if (y.factor == 1) return frequencies;
  double first = pair_index(y.fast, rope), last = pair_index(y.slow, rope);
  if (y.rounds) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, static_cast<double>(rope.dims - 1));
  const double width = first == last ? 0.001 : last - first;
  const at::Tensor ramp = ((at::arange(frequencies.numel(), frequencies.options()) - first) / width).clamp(0, 1);
  return frequencies * (1 - ramp + ramp / y.factor);
}

}  // namespace

double yarn_mscale(double factor, double weight) { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; }

void RopeTable::grow(int64_t positions, const at::TensorOptions& options) {
  const bool fits = cos_.defined() && cos_.size(0) >= positions && cos_.dtype() == options.dtype() &&
                    cos_.device() == options.device();
  if (fits) return;
  if (options.device().is_meta()) {
    cos_ = at::empty({positions, spec_.dims / 2}, options);
    sin_ = at::empty_like(cos_);
    return;
  }
  const at::Tensor exponent = at::arange(0, spec_.dims, 2, at::kDouble) / static_cast<double>(spec_.dims);
  const at::Tensor frequencies =
      apply_yarn(scale_frequencies(at::pow(spec_.base, exponent).reciprocal(), spec_.scaling), spec_);
  const at::Tensor angles = at::outer(at::arange(positions, at::kDouble) / spec_.interpolation, frequencies);
  cos_ = (angles.cos() * spec_.amplitude).to(options);
  sin_ = (angles.sin() * spec_.amplitude).to(options);
}

void RopeTable::reserve(int64_t positions, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  if (positions > 0) grow(positions, at::TensorOptions().dtype(acc_type(type)).device(target_.memory()));
}

void RopeTable::rotate(const at::Tensor& x, const Positions& rows, int direction) {
  const at::NoGradGuard no_grad;
  MPX_ASSERT(x.dim() == 4 && x.stride(3) == 1 && x.size(3) >= spec_.dims,
             "RopeTable::rotate needs x [s, b, heads, head_dim >= ", spec_.dims, "] with a last stride of 1");
  const int64_t positions = x.size(0);
  const bool has_rows = rows.rows.defined();
  grow(has_rows ? rows.whole : rows.first + positions,
       at::TensorOptions().dtype(acc_type(x.scalar_type())).device(x.device()));
  const auto select_table = [&](const at::Tensor& table) {
    return has_rows ? select_rows(table, 0, rows.rows) : table.narrow(0, rows.first, positions);
  };
  const at::Tensor cos = select_table(cos_), sin = select_table(sin_);
  const kernels::RopeShape shape{positions,   x.size(1),   x.size(2),   spec_.dims,
                                 x.stride(0), x.stride(1), x.stride(2), spec_.interleaved};
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Table = kernels::Wide<T>;
    device::launch(target_, {"rope", {&x, &cos, &sin}, {&x}, {{"direction", direction}}}, kernels::rope<T>,
                   kernels::rope_cuda<T>, elements<T>(x), elements<Table>(cos), elements<Table>(sin), direction,
                   shape);
  });
}

}  // namespace metroplex::nn
