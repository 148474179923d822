// Formats of the rows between ranks (model.moe_dispatch_fwd_dtype, moe_combine_bwd_dtype). A row is rounded by
// itself, also one that stays on its rank, so the values depend on the layout only if ranks scale gradients by a
// factor that is no power of two.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/model.h"
#include "device/launch_point.h"

namespace metroplex::moe {

// The formats of the rows of an exchange and of their gradients.
struct RowFormats {
  device::Target target;
  config::RowDtype forward = config::RowDtype::params, backward = config::RowDtype::params;
};

// x [R, width] <-> bytes [R, width + width / 32] (kernels/row_codes.h); without effect for `params`. Without
// autograd.
at::Tensor encode_rows(const device::Target& target, config::RowDtype format, const at::Tensor& x);
at::Tensor decode_rows(const device::Target& target, config::RowDtype format, const at::Tensor& rows,
                       at::ScalarType type);

// Rounds rows, and in backward their gradients, as an exchange does.
at::Tensor round_rows(const RowFormats& formats, const at::Tensor& x);

}  // namespace metroplex::moe
