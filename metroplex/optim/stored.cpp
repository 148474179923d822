#include "optim/stored.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "cuda/kernels/block8.h"
#include "cuda/kernels/optimizer_storage.h"

namespace metroplex::optim {
namespace kernels = cuda::kernels;

kernels::Number number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return kernels::Number::f64;
    case at::kFloat:
      return kernels::Number::f32;
    case at::kBFloat16:
      return kernels::Number::bf16;
    case at::kHalf:
      return kernels::Number::f16;
    case at::kByte:
      return kernels::Number::block8;
    default:
      MPX_ASSERT(false, "optimizer state in ", c10::toString(dtype));
      return kernels::Number::f32;
  }
}

Stored::Stored(int64_t size, const std::string& dtype, bool wide, bool second) : second_(second) {
  MPX_CHECK(dtype == "fp32" || dtype == "bf16" || dtype == "8bit", "optim", "optimizer state in '", dtype,
            "' is unknown; choose fp32, bf16 or 8bit");
  const bool blocks = !wide && dtype == "8bit";
  const at::ScalarType type = wide ? at::kDouble : blocks ? at::kByte : dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  data_ = at::zeros({size}, type);
  if (blocks) scales_ = at::zeros({kernels::block8_scales(size)}, at::kFloat);
}

at::Tensor Stored::values() const {
  if (!scales_.defined()) return data_.scalar_type() == at::kBFloat16 ? data_.to(at::kFloat) : data_;
  at::Tensor out = at::empty(data_.sizes(), at::kFloat);
  kernels::block8_decode(data_.const_data_ptr<uint8_t>(), scales_.const_data_ptr<float>(), data_.numel(), !second_,
                         out.mutable_data_ptr<float>());
  return out;
}

void Stored::set(const at::Tensor& values) {
  if (values.is_same(data_)) return;
  if (!scales_.defined()) {
    data_.copy_(values);
    return;
  }
  const at::Tensor wide = values.to(at::kFloat).contiguous();
  kernels::block8_encode(wide.const_data_ptr<float>(), data_.numel(), !second_, data_.mutable_data_ptr<uint8_t>(),
                         scales_.mutable_data_ptr<float>());
}

kernels::MomentArray Stored::array() {
  return {data_.mutable_data_ptr(), number_of(data_.scalar_type()),
          scales_.defined() ? scales_.mutable_data_ptr<float>() : nullptr};
}

int64_t Stored::bytes() const {
  return static_cast<int64_t>(data_.nbytes() + (scales_.defined() ? scales_.nbytes() : 0));
}

}  // namespace metroplex::optim
