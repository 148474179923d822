// A one-dimensional array of optimizer state as it is stored: in the precision of the computation, in bf16, or in
// blocks of 8 bits with a scale each (cuda/kernels/block8.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cuda/kernels/optimizer_step.h"

namespace metroplex::optim {

class Stored {
 public:
  Stored() = default;
  // Zeros. `dtype` is fp32 | bf16 | 8bit; a wide (float64) array ignores it. `second`: never negative.
  Stored(int64_t size, const std::string& dtype, bool wide, bool second);

  // As fp32 or fp64: the storage itself where it is that already, else a decoded copy.
  at::Tensor values() const;
  void set(const at::Tensor& values);
  cuda::kernels::MomentArray array();
  int64_t bytes() const;

 private:
  at::Tensor data_, scales_;
  bool second_ = false;
};

cuda::kernels::Number number_of(at::ScalarType dtype);

}  // namespace metroplex::optim
