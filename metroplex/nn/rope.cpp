#include "nn/rope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/kernels/rope.h"
#include "nn/wide.h"

namespace metroplex::nn {

void RopeTable::grow(int64_t positions, const at::TensorOptions& options) {
  const bool fits = cos_.defined() && cos_.size(0) >= positions && cos_.dtype() == options.dtype() &&
                    cos_.device() == options.device();
  if (fits) return;
  const at::Tensor exponent = at::arange(0, rotary_dims_, 2, at::kDouble) / static_cast<double>(rotary_dims_);
  const at::Tensor angles = at::outer(at::arange(positions, at::kDouble), at::pow(base_, exponent).reciprocal());
  cos_ = angles.cos().to(options);
  sin_ = angles.sin().to(options);
}

void RopeTable::rotate(const at::Tensor& x, int64_t first_position, int direction) {
  const at::NoGradGuard no_grad;
  MPX_ASSERT(x.dim() == 4 && x.stride(3) == 1 && x.size(3) >= rotary_dims_, "heads of rotary embedding");
  const int64_t positions = x.size(0);
  grow(first_position + positions, at::TensorOptions().dtype(wide_type(x.scalar_type())).device(x.device()));
  const at::Tensor cos = cos_.narrow(0, first_position, positions), sin = sin_.narrow(0, first_position, positions);
  const cuda::kernels::RopeShape shape{positions,   x.size(1),   x.size(2),  rotary_dims_,
                                       x.stride(0), x.stride(1), x.stride(2)};
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Table = cuda::kernels::Wide<T>;
    if (x.is_cuda()) {
      cuda::kernels::rope_cuda<T>(elements<T>(x), elements<Table>(cos), elements<Table>(sin), direction, shape,
                                  cuda::current_stream());
    } else {
      cuda::kernels::rope<T>(elements<T>(x), elements<Table>(cos), elements<Table>(sin), direction, shape);
    }
  });
}

}  // namespace metroplex::nn
