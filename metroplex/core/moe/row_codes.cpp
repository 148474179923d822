#include "moe/row_codes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "kernels/row_codes.h"
#include "nn/autograd_node.h"
#include "nn/wide.h"

namespace metroplex::moe {

using config::RowDtype;

at::Tensor encode_rows(const device::Target& target, RowDtype format, const at::Tensor& x) {
  if (format == RowDtype::params) return x;
  const kernels::RowCodesShape shape{x.size(0), x.size(1)};
  const at::Tensor codes = at::empty({shape.rows, shape.row_bytes()}, x.options().dtype(at::kByte));
  nn::dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"encode_rows", {&x}, {&codes}}, kernels::encode_rows<T>, kernels::encode_rows_cuda<T>,
                   static_cast<uint8_t*>(codes.mutable_data_ptr()), static_cast<const T*>(nn::elements<T>(x)), shape);
  });
  return codes;
}

at::Tensor decode_rows(const device::Target& target, RowDtype format, const at::Tensor& rows, at::ScalarType type) {
  if (format == RowDtype::params) return rows;
  constexpr int64_t kBlock = kernels::kRowBlock;
  const kernels::RowCodesShape shape{rows.size(0), rows.size(1) / (kBlock + 1) * kBlock};
  const at::Tensor x = at::empty({shape.rows, shape.columns}, rows.options().dtype(type));
  nn::dispatch_element(type, [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"decode_rows", {&rows}, {&x}}, kernels::decode_rows<T>, kernels::decode_rows_cuda<T>,
                   nn::elements<T>(x), static_cast<const uint8_t*>(rows.const_data_ptr()), shape);
  });
  return x;
}

at::Tensor round_rows(const RowFormats& formats, const at::Tensor& x) {
  if (formats.forward == RowDtype::params && formats.backward == RowDtype::params) return x;
  const auto round = [target = formats.target](RowDtype format, const at::Tensor& rows) {
    return decode_rows(target, format, encode_rows(target, format, rows), rows.scalar_type());
  };
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = round(formats.forward, x.detach().contiguous());
  }
  return nn::attach(out, {x}, [round, format = formats.backward](const at::Tensor& dy) -> nn::Gradients {
    const at::NoGradGuard no_grad;
    return {round(format, dy.contiguous())};
  });
}

}  // namespace metroplex::moe
