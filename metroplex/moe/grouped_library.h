// The products of the experts of a layer by libtorch (at::_grouped_mm: CUTLASS, offsets on the device, the host waits
// for nothing), for GPUs of sm_90 and sm_100. It makes its result, in bf16 like its operands; rows behind the last
// group are not written there either.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cuda/kernels/grouped_product.h"
#include "cuda/launch_point.h"

namespace metroplex::moe {

// What decides who multiplies.
struct GroupedCase {
  bool gpu = false;
  int capability = 0;  // of the GPU; 0: unknown
  at::ScalarType type = at::kFloat;
  int64_t in = 0, out = 0;  // of the weights
  bool clones = false;      // lie in another tensor than the weights of home experts
};
// Rows of all operands begin at multiples of 16 bytes, as its kernels want them.
bool library_multiplies(const GroupedCase& c);
// Who does, for the log: "libtorch's _grouped_mm", "own tiles, AMX", "own panels, AVX-512", ...
std::string product_name(const GroupedCase& c);

// counts [groups] int64, weights [groups, out, in]. forward: x [R, in] to [R, out]; input_gradient the other way.
at::Tensor library_rows(const cuda::Target& target, cuda::kernels::GroupedOp op, const at::Tensor& rows,
                        const at::Tensor& weights, const at::Tensor& counts);

// gradient [groups, out, in] += dy [R, out] transposed times x [R, in] by group, or = with `adds` false. The product
// is rounded to bf16, then added in one pass. `zeros_empty`: a group without rows gets what lies in memory
// (libtorch 2.11 on sm_100).
struct LibraryGradient {
  at::Tensor gradient;
  bool adds = true, zeros_empty = false;
};
void put_library_weight_gradient(const cuda::Target& target, const LibraryGradient& to, const at::Tensor& dy,
                                 const at::Tensor& x, const at::Tensor& counts);

}  // namespace metroplex::moe
