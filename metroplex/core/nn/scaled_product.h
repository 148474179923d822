// Products of 8-bit codes by libtorch, with one factor for each operand (at::_scaled_mm).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "device/launch_point.h"

namespace metroplex::nn {

// A matrix whose values are decode * codes.
struct Codes {
  at::Tensor codes;   // [rows, columns], an 8-bit floating-point type, contiguous
  at::Tensor decode;  // [1] fp32
  Codes transposed() const { return {codes.t().contiguous(), decode}; }
};

// left [m, k], right [n, k] -> left right^T [m, n] of `type` (bf16, fp16 or fp32), with fp32 sums. Throws
// base::Error("config") unless n and k are multiples of 16. `layer` is named in errors.
at::Tensor scaled_product(const device::Target& target, const Codes& left, const Codes& right, at::ScalarType type,
                          const std::string& layer);

}  // namespace metroplex::nn
