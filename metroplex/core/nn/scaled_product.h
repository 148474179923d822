// Products of 8-bit codes by libtorch: with one factor for each operand (at::_scaled_mm), or one for each block
// (at::_scaled_mm_v2).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "config/precision.h"
#include "device/launch_point.h"

namespace metroplex::nn {

// A matrix whose values are decode * codes.
struct Codes {
  at::Tensor codes;                           // [rows, columns], an 8-bit floating-point type, contiguous
  at::Tensor decode;                          // fp32: [1], or [row blocks, column blocks]
  int64_t block_rows = 0, block_columns = 0;  // 0: one factor
  bool has_blocks() const { return block_columns > 0; }
  Codes transposed() const;
  // fp32; exact unless decode * code has more than 24 significant bits.
  at::Tensor values() const;
};

// The factors in the layout of at::_scaled_mm_v2, with its enumerators at::blas::ScalingType and SwizzleType.
//   1 x 128    fp32 [rows, column blocks], column by column
//   128 x 128  fp32 [column blocks rounded up to 4, row blocks], column by column
//   1 x 32     E8M0, tiles of 128 rows and 4 blocks, filled up with 0 (cuBLAS, "1D block scaling factors layout")
struct LibraryFactors {
  at::Tensor factors;
  int64_t scaling = 0, swizzle = 0;
};
LibraryFactors library_factors(const Codes& operand);

// Throws base::Error("config") if libtorch has no product of the recipe's codes on GPUs of `capability`; 0: a CPU.
void check_code_product(config::Recipe recipe, int capability);

// left [m, k], right [n, k], with blocks along k -> left right^T [m, n] of `type` (bf16, fp16 or fp32), with fp32
// sums. CPUs multiply the values of operands with blocks. Throws base::Error("config") unless n and k, and with
// blocks also m, are multiples of 16. `layer` is named in errors.
at::Tensor scaled_product(const device::Target& target, const Codes& left, const Codes& right, at::ScalarType type,
                          const std::string& layer);

}  // namespace metroplex::nn
