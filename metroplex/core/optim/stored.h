// A one-dimensional array of optimizer state in its storage format: the precision of the computation, bf16, or 8-bit
// blocks with one scale each (kernels/block8.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "config/optim.h"
#include "kernels/optimizer_step.h"
#include "device/launch_point.h"

namespace metroplex::optim {

class MomentStorage {
 public:
  MomentStorage() = default;
  struct Form {
    config::MomentDtype dtype = config::MomentDtype::fp32;  // ignored if wide
    bool wide = false;                                      // float64
    bool second = false;                                    // values are never negative
    device::Target target;                                  // for storage and decoding
  };
  // Initializes to zero.
  MomentStorage(int64_t size, const Form& form);

  // Returns fp32 or fp64: the storage itself if it has that dtype, else a decoded copy.
  at::Tensor values() const;
  at::ScalarType values_dtype() const { return data_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
  void set(const at::Tensor& values);
  // Returns the array from element `begin`, which must be a multiple of kBlock8.
  kernels::MomentArray array(int64_t begin = 0);
  int64_t bytes() const;
  // The stored data; scales are undefined without blocks.
  const at::Tensor& data() const { return data_; }
  const at::Tensor& scales() const { return scales_; }

 private:
  at::Tensor data_, scales_;
  bool second_ = false;
  device::Target target_;
};

kernels::Number to_number(at::ScalarType dtype);

}  // namespace metroplex::optim
