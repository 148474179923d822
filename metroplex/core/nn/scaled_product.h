// Products of 8-bit codes by libtorch: with one factor for each operand (at::_scaled_mm), for each block
// (at::_scaled_mm_v2), or for the rows of each expert (at::_scaled_grouped_mm).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "config/precision.h"
#include "device/launch_point.h"

namespace metroplex::nn {

// A matrix whose values are decode * codes.
struct Codes {
  at::Tensor codes;   // [rows, columns], an 8-bit floating-point type, contiguous
  at::Tensor decode;  // fp32, or fp64 in an fp64 run: [groups of rows], or [row blocks, column blocks]
  int64_t block_rows = 0, block_columns = 0;  // 0: no blocks
  at::Tensor counts = {};                     // [groups] int64: rows of each; undefined: equal numbers
  bool has_blocks() const { return block_columns > 0; }
  Codes transposed() const;  // of one group
  // [rows], without blocks. Rows after the last group have the last factor.
  at::Tensor row_factors() const;
  // [rows, columns] in the dtype of `decode`, in `out` if it is defined. Exact unless decode * code has more
  // significant bits than the dtype.
  at::Tensor values(at::Tensor out = {}) const;
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

// The arguments of at::_scaled_grouped_mm. Rows [R, k] of groups and one matrix for each group -> [R, n].
struct GroupedCodes {
  at::Tensor rows, row_factors;         // [R, k], [R]
  at::Tensor matrices, column_factors;  // [groups, k, n] with strides (n k, 1, k), [groups, n]
};
// `weights`: a stack of [out, in] as one matrix. forward: k = in, n = out; else the reverse.
GroupedCodes grouped_codes(const Codes& rows, const Codes& weights, bool forward);
// Whether libtorch multiplies rows of groups on GPUs of `capability`; 0: a CPU, where the caller multiplies values.
bool multiplies_grouped_codes(config::Recipe recipe, int capability);
// Returns [R, n] in bf16. `ends` [groups] int32: ends of the groups' rows. Throws base::Error("config") unless k and
// n are multiples of 16.
at::Tensor scaled_grouped_product(const device::Target& target, const GroupedCodes& operands, const at::Tensor& ends,
                                  double fill, const std::string& layer);

}  // namespace metroplex::nn
