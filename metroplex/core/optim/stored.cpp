#include "optim/stored.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "kernels/block8.h"

namespace metroplex::optim {

kernels::Number to_number(at::ScalarType dtype) {
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

MomentStorage::MomentStorage(int64_t size, const Form& form) : second_(form.second), target_(form.target) {
  const bool blocks = !form.wide && form.dtype == config::MomentDtype::eight_bit;
  const at::ScalarType type = form.wide                                 ? at::kDouble
                              : blocks                                  ? at::kByte
                              : form.dtype == config::MomentDtype::bf16 ? at::kBFloat16
                                                                        : at::kFloat;
  const auto options = at::TensorOptions().device(form.target.memory());
  data_ = at::zeros({size}, options.dtype(type));
  if (blocks) scales_ = at::zeros({kernels::block8_scales(size)}, options.dtype(at::kFloat));
}

at::Tensor MomentStorage::values() const {
  if (!scales_.defined()) return data_.scalar_type() == at::kBFloat16 ? data_.to(at::kFloat) : data_;
  at::Tensor out = at::empty(data_.sizes(), data_.options().dtype(at::kFloat));
  device::launch(
      target_, {"block8_decode", {&data_, &scales_}, {&out}, {{"is_signed", !second_}}},
      [](const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* to) {
        kernels::block8_decode(codes, scales, n, is_signed, to);
      },
      kernels::block8_decode_cuda, static_cast<const uint8_t*>(data_.const_data_ptr()),
      static_cast<const float*>(scales_.const_data_ptr()), data_.numel(), !second_,
      static_cast<float*>(out.mutable_data_ptr()));
  return out;
}

void MomentStorage::set(const at::Tensor& values) {
  if (values.is_same(data_)) return;
  if (!scales_.defined()) {
    data_.copy_(values);
    return;
  }
  const at::Tensor wide = values.to(data_.device(), at::kFloat).contiguous();
  device::launch(target_, {"block8_encode", {&wide}, {&data_, &scales_}, {{"is_signed", !second_}}},
                 kernels::block8_encode, kernels::block8_encode_cuda,
                 static_cast<const float*>(wide.const_data_ptr()), data_.numel(), !second_,
                 static_cast<uint8_t*>(data_.mutable_data_ptr()), static_cast<float*>(scales_.mutable_data_ptr()));
}

kernels::MomentArray MomentStorage::array(int64_t begin) {
  MPX_ASSERT(begin % kernels::kBlock8 == 0, "optimizer state: element ", begin,
             " is not the first of an 8-bit block");
  return {static_cast<char*>(data_.mutable_data_ptr()) + begin * static_cast<int64_t>(data_.element_size()),
          to_number(data_.scalar_type()),
          scales_.defined() ? static_cast<float*>(scales_.mutable_data_ptr()) + begin / kernels::kBlock8 : nullptr};
}

int64_t MomentStorage::bytes() const {
  return static_cast<int64_t>(data_.nbytes() + (scales_.defined() ? scales_.nbytes() : 0));
}

}  // namespace metroplex::optim
