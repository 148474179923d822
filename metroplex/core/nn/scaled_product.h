// Products of 8-bit and 4-bit codes by libtorch: with one factor for each operand (at::_scaled_mm), for each block
// (at::_scaled_mm_v2), or for the rows of each expert (at::_scaled_grouped_mm, at::_scaled_grouped_mm_v2).
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "config/precision.h"
#include "device/launch_point.h"

namespace metroplex::nn {

// A matrix whose values are decode * codes, or (decode * tensor_decode) * codes.
struct Codes {
  // Contiguous: [rows, columns], an 8-bit floating-point type; or [rows, columns / 2], pairs of E2M1 in which the
  // even column has the low bits. Without blocks also bf16, with the numbers of the 8-bit codes.
  at::Tensor codes;
  // fp32, or fp64 in an fp64 run: [groups of rows], or [row blocks, column blocks]. Pairs: E4M3.
  at::Tensor decode;
  int64_t block_rows = 0, block_columns = 0;  // 0: no blocks
  at::Tensor counts = {};                     // [groups] int64: rows of each; undefined: equal numbers
  at::Tensor tensor_decode = {};              // pairs: [1] fp32
  bool has_blocks() const { return block_columns > 0; }
  bool has_pairs() const { return tensor_decode.defined(); }
  int64_t columns() const { return codes.size(1) * (has_pairs() ? 2 : 1); }
  int64_t bytes() const;
  // [rows], without blocks. Rows after the last group have the last factor.
  at::Tensor row_factors() const;
  // [rows, columns] in the dtype of the factors (pairs: fp32), in `out` if it is defined. Equal to the results of
  // kernels::round_blocks. Exact unless decode * code has more significant bits than the dtype.
  at::Tensor values(at::Tensor out = {}) const;
};

// The codes of one group, in 8 bits or pairs, as [columns, rows], in `out` if it is defined. With pairs, the number
// of rows is even.
Codes transpose(const device::Target& target, const Codes& codes, Codes out = {});

// The factors in the layout of at::_scaled_mm_v2, with its enumerators at::blas::ScalingType and SwizzleType.
//   1 x 128    fp32 [rows, column blocks], column by column
//   128 x 128  fp32 [column blocks rounded up to 4, row blocks], column by column
//   1 x 32     E8M0, tiles of 128 rows and 4 blocks, filled up with 0 (cuBLAS, "1D block scaling factors layout")
//   pairs      E4M3 for each row, also of square blocks, in the same tiles; then the tensor's factor
struct LibraryFactors {
  std::vector<at::Tensor> factors;
  std::vector<int64_t> scaling, swizzle;
};
LibraryFactors library_factors(const Codes& operand);

// Throws base::Error("config") if libtorch has no product of the recipe's codes on GPUs of `capability`; 0: a CPU.
void check_code_product(config::Recipe recipe, int capability);

// Throws base::Error("config") unless `sizes` are multiples of `multiple`. `layer` is named in errors.
void check_product_sizes(const std::string& layer, std::initializer_list<int64_t> sizes, int64_t multiple = 16);

// left [m, k], right [n, k], with blocks along k -> left right^T [m, n] of `type` (bf16, fp16 or fp32), with fp32
// sums. CPUs multiply the values of operands with blocks. check_product_sizes(): n and k, with blocks also m, are
// multiples of 16; with pairs, k is a multiple of 32. libtorch copies the product of both tensors' factors of pairs
// to one address for each process: a process must not multiply pairs on two streams or GPUs.
at::Tensor scaled_product(const device::Target& target, const Codes& left, const Codes& right, at::ScalarType type,
                          const std::string& layer);

// gradient [m, n] = or += left right^T. GPUs add in the kernel of the product if the library can, else by a pass.
void put_scaled_product(const device::Target& target, const at::Tensor& gradient, const Codes& left,
                        const Codes& right, const std::string& layer, bool adds);

// The arguments of at::_scaled_grouped_mm, or with blocks of at::_scaled_grouped_mm_v2. Rows [R, k] of groups and one
// matrix for each group -> [R, n].
struct GroupedCodes {
  at::Tensor rows, matrices;  // [R, k]; [groups, k, n] with strides (n k, 1, k)
  // [R] and [groups, n] of fp32. 1 x 32: E8M0 in tiles of 128 rows and 4 blocks, as [128 tiles down, 4 tiles across],
  // where each group begins a tile, and [groups, factors of a matrix].
  at::Tensor row_factors, column_factors;
  bool has_blocks = false;
};
// `weights`: a stack of [out, in] as one matrix, with blocks along k. forward: k = in, n = out; else the reverse.
// With blocks, rows.counts must be defined.
GroupedCodes grouped_codes(const Codes& rows, const Codes& weights, bool forward);
// Whether libtorch multiplies rows of groups on GPUs of `capability`; 0: a CPU, where the caller multiplies values.
bool multiplies_grouped_codes(config::Recipe recipe, int capability);
// Returns [R, n] in bf16. `ends` [groups] int32: ends of the groups' rows. check_product_sizes(): k and n are
// multiples of 16; with blocks, k is a multiple of 32.
at::Tensor scaled_grouped_product(const device::Target& target, const GroupedCodes& operands, const at::Tensor& ends,
                                  double fill, const std::string& layer);

}  // namespace metroplex::nn
