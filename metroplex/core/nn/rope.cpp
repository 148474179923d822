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

// Rotation by a scaled angle table also scales, since all channels of a head are rotated.
void RopeTable::scale_queries(Table& table) const {
  table.query_cos = table.cos, table.query_sin = table.sin;
  if (spec_.query_beta == 0) return;
  const at::Tensor positions = at::arange(table.cos.size(0), at::kDouble) + spec_.query_offset;
  const at::Tensor steps = at::floor(positions / static_cast<double>(spec_.query_positions));
  const at::Tensor scale = (1 + spec_.query_beta * at::log1p(steps)).unsqueeze(1).to(table.cos.options());
  table.query_cos = table.cos * scale, table.query_sin = table.sin * scale;
}

const RopeTable::Table& RopeTable::grow(int64_t positions, const at::TensorOptions& options) {
  const bool above = !spec_.factors.above.empty() && positions > spec_.factors.positions;
  Table& table = tables_[above ? 1 : 0];
  const bool fits = table.cos.defined() && table.cos.size(0) >= positions && table.cos.dtype() == options.dtype() &&
                    table.cos.device() == options.device();
  if (fits) return table;
  if (options.device().is_meta()) {
    table.cos = at::empty({positions, spec_.dims / 2}, options);
    table.sin = at::empty_like(table.cos);
    scale_queries(table);
    return table;
  }
  const at::Tensor exponent = at::arange(0, spec_.dims, 2, at::kDouble) / static_cast<double>(spec_.dims);
  at::Tensor frequencies =
      apply_yarn(scale_frequencies(at::pow(spec_.base, exponent).reciprocal(), spec_.scaling), spec_);
  const std::vector<double>& divisors = above ? spec_.factors.above : spec_.factors.up_to;
  if (!divisors.empty()) frequencies = frequencies / at::tensor(divisors, at::kDouble);
  at::Tensor angles = at::outer(at::arange(positions, at::kDouble) / spec_.interpolation, frequencies);
  if (!spec_.rotates) angles = at::zeros_like(angles);
  table.cos = (angles.cos() * spec_.amplitude).to(options);
  table.sin = (angles.sin() * spec_.amplitude).to(options);
  scale_queries(table);
  return table;
}

void RopeTable::reserve(int64_t positions, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  if (positions > 0) grow(positions, at::TensorOptions().dtype(acc_type(type)).device(target_.memory()));
}

RopeTable::Angles RopeTable::angles(const at::Tensor& x, const Positions& rows, Of what) {
  const at::NoGradGuard no_grad;
  if (!spec_.rotates && what == Of::keys) return {};
  const int64_t positions = x.size(0);
  const bool has_rows = rows.rows.defined();
  const Table& table = grow(has_rows ? rows.whole : rows.first + positions,
                            at::TensorOptions().dtype(acc_type(x.scalar_type())).device(x.device()));
  const auto select = [&](const at::Tensor& of) {
    return has_rows ? select_rows(of, 0, rows.rows) : of.narrow(0, rows.first, positions);
  };
  const bool queries = what == Of::queries;
  return {select(queries ? table.query_cos : table.cos), select(queries ? table.query_sin : table.sin),
          spec_.interleaved};
}

void RopeTable::rotate(const at::Tensor& x, const Positions& rows, int direction, Of what) {
  rotate(x, angles(x, rows, what), direction);
}

void RopeTable::rotate(const at::Tensor& x, const Angles& angles, int direction) const {
  MPX_ASSERT(x.dim() == 4 && x.stride(3) == 1 && x.size(3) >= spec_.dims,
             "RopeTable::rotate needs x [s, b, heads, head_dim >= ", spec_.dims, "] with a last stride of 1");
  if (!angles.cos.defined()) return;
  const at::NoGradGuard no_grad;
  const kernels::RopeShape shape{x.size(0),   x.size(1),   x.size(2),   spec_.dims,
                                 x.stride(0), x.stride(1), x.stride(2), spec_.interleaved};
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Table = kernels::Wide<T>;
    device::launch(target_, {"rope", {&x, &angles.cos, &angles.sin}, {&x}, {{"direction", direction}}},
                   kernels::rope<T>, kernels::rope_cuda<T>, elements<T>(x), elements<Table>(angles.cos),
                   elements<Table>(angles.sin), direction, shape);
  });
}

}  // namespace metroplex::nn
