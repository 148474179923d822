#include "nn/rope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "cuda/kernels/rope.h"
#include "nn/wide.h"

namespace metroplex::nn {

static at::Tensor scaled(const at::Tensor& frequencies, const RopeScaling& s) {
  if (s.factor == 1) return frequencies;
  const at::Tensor wavelengths = 2 * M_PI / frequencies;
  const at::Tensor kept = ((static_cast<double>(s.positions) / wavelengths - s.low) / (s.high - s.low)).clamp(0, 1);
  return frequencies * (kept + (1 - kept) / s.factor);
}

void RopeTable::grow(int64_t positions, const at::TensorOptions& options) {
  const bool fits = cos_.defined() && cos_.size(0) >= positions && cos_.dtype() == options.dtype() &&
                    cos_.device() == options.device();
  if (fits) return;
  if (options.device().is_meta()) {
    cos_ = at::empty({positions, rotary_dims_ / 2}, options);
    sin_ = at::empty_like(cos_);
    return;
  }
  const at::Tensor exponent = at::arange(0, rotary_dims_, 2, at::kDouble) / static_cast<double>(rotary_dims_);
  const at::Tensor angles =
      at::outer(at::arange(positions, at::kDouble), scaled(at::pow(base_, exponent).reciprocal(), scaling_));
  cos_ = angles.cos().to(options);
  sin_ = angles.sin().to(options);
}

void RopeTable::reserve(int64_t positions, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  if (positions > 0) grow(positions, at::TensorOptions().dtype(acc_type(type)).device(target_.memory()));
}

void RopeTable::rotate(const at::Tensor& x, const Positions& rows, int direction) {
  const at::NoGradGuard no_grad;
  MPX_ASSERT(x.dim() == 4 && x.stride(3) == 1 && x.size(3) >= rotary_dims_,
             "RopeTable::rotate needs x [s, b, heads, head_dim >= ", rotary_dims_, "] with a last stride of 1");
  const int64_t positions = x.size(0);
  const bool chosen = rows.rows.defined();
  grow(chosen ? rows.whole : rows.first + positions,
       at::TensorOptions().dtype(acc_type(x.scalar_type())).device(x.device()));
  const auto of_rows = [&](const at::Tensor& table) {
    return chosen ? select_rows(table, 0, rows.rows) : table.narrow(0, rows.first, positions);
  };
  const at::Tensor cos = of_rows(cos_), sin = of_rows(sin_);
  const cuda::kernels::RopeShape shape{positions,   x.size(1),   x.size(2),  rotary_dims_,
                                       x.stride(0), x.stride(1), x.stride(2)};
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Table = cuda::kernels::Wide<T>;
    cuda::launch(target_, {"rope", {&x, &cos, &sin}, {&x}, {{"direction", direction}}}, cuda::kernels::rope<T>,
                 cuda::kernels::rope_cuda<T>, elements<T>(x), elements<Table>(cos), elements<Table>(sin), direction,
                 shape);
  });
}

}  // namespace metroplex::nn
