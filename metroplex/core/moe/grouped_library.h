// Grouped matrix products of a layer's experts by libtorch (at::_grouped_mm: CUTLASS, offsets on the device, no host
// synchronization), for GPUs of sm_90 and sm_100. Results are bf16 like the operands; rows after the last group are
// not written.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/grouped_product.h"
#include "device/launch_point.h"
#include "moe/grouped_product.h"

namespace metroplex::moe {

// Properties that select the implementation of a product.
struct GroupedCase {
  bool gpu = false;
  int capability = 0;  // of the GPU; 0: unknown
  at::ScalarType type = at::kFloat;
  int64_t in = 0, out = 0;  // of the weights
  // Weights of local experts and replicas are read. They are two tensors, which a copy must concatenate first.
  bool joins = false;
  int64_t rows_of_group = 0;  // buffer rows per group on average; used if `joins`
};
// Minimum rows per group for which the library compensates for that copy. The copy moves 4 bytes per weight at 3e12
// bytes/s; each row saves 2 (1 / 2.2e14 - 1 / 6.9e14) s per weight (rates on one H200, docs/gpu.md). Break-even is at
// 215 rows; buffers may be half empty.
constexpr int64_t kRowsForJoin = 512;
// True if the library has products of the type.
bool library_has(bool gpu, int capability, at::ScalarType type);
// True if the library supports the case and is faster. Its kernels require operand rows aligned to 16 bytes.
bool library_multiplies(const GroupedCase& c);
// Name of the implementation for the log: "libtorch's _grouped_mm", "own tiles, AMX", "own panels, AVX-512", ...
std::string product_name(const GroupedCase& c);

// Returns GroupCounts::ends of buffers of `rows` rows.
at::Tensor group_ends(const device::Target& target, const at::Tensor& counts, int64_t rows);

// `fill`: see GroupedProduct. forward: x [R, in] to [R, out]; input_gradient: the reverse.
// With replicas, all weights are copied temporarily.
at::Tensor library_rows(const device::Target& target, kernels::GroupedOp op, const at::Tensor& rows,
                        const GroupedWeights& weights, const GroupCounts& counts, double fill = 1);

// Gradient of local experts += dy^T x by group, for dy [R, out] and x [R, in]; overwrites if `adds` is false. The
// gradient of replicas is always overwritten. Products are rounded to bf16, then added in one pass. `zeros_empty`:
// zeroes groups without rows, which libtorch 2.11 leaves uninitialized on sm_100.
struct LibraryGradient {
  GroupedWeights gradient;
  bool adds = true, zeros_empty = false;
  double fill = 1;  // see GroupedProduct
};
void put_library_weight_gradient(const device::Target& target, const LibraryGradient& to, const at::Tensor& dy,
                                 const at::Tensor& x, const GroupCounts& counts);

}  // namespace metroplex::moe
