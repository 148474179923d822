// The products of the experts of a layer by libtorch (at::_grouped_mm: CUTLASS, offsets on the device, the host waits
// for nothing), for GPUs of sm_90 and sm_100. It makes its result, in bf16 like its operands; rows behind the last
// group are not written there either.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cuda/kernels/grouped_product.h"
#include "cuda/launch_point.h"
#include "moe/grouped_product.h"

namespace metroplex::moe {

// What decides who multiplies.
struct GroupedCase {
  bool gpu = false;
  int capability = 0;  // of the GPU; 0: unknown
  at::ScalarType type = at::kFloat;
  int64_t in = 0, out = 0;  // of the weights
  // Weights of home experts and of clones are read, which lie in two tensors: a copy puts them side by side first.
  bool joins = false;
  int64_t rows_of_group = 0;  // that there is room for, in the mean: asked where `joins`
};
// From so many rows a group on, the library makes up for that copy. Of a weight it moves 4 bytes, at 3e12 a second,
// and each row saves 2 (1 / 2.2e14 - 1 / 6.9e14) s a weight (rates on one H200, docs/gpu.md): 215 rows. Buffers may
// be half empty.
constexpr int64_t kRowsForJoin = 512;
// Rows of all operands begin at multiples of 16 bytes, as its kernels want them.
bool library_multiplies(const GroupedCase& c);
// Who does, for the log: "libtorch's _grouped_mm", "own tiles, AMX", "own panels, AVX-512", ...
std::string product_name(const GroupedCase& c);

// counts [groups] int64. forward: x [R, in] to [R, out]; input_gradient the other way. Clones cost a copy of all
// weights while it runs.
at::Tensor library_rows(const cuda::Target& target, cuda::kernels::GroupedOp op, const at::Tensor& rows,
                        const GroupedWeights& weights, const at::Tensor& counts);

// gradient of home experts += dy [R, out] transposed times x [R, in] by group, or = with `adds` false; that of clones
// is always written. The product is rounded to bf16, then added in one pass. `zeros_empty`: a group without rows gets
// what lies in memory (libtorch 2.11 on sm_100).
struct LibraryGradient {
  GroupedWeights gradient;
  bool adds = true, zeros_empty = false;
};
void put_library_weight_gradient(const cuda::Target& target, const LibraryGradient& to, const at::Tensor& dy,
                                 const at::Tensor& x, const at::Tensor& counts);

}  // namespace metroplex::moe
