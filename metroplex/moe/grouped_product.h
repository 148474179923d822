// The products of the experts of a layer, all local experts in one call, with the number of rows of each only on the
// device. `counts` [E] int64 says how many rows of an activation [R, width] belong to each expert, one behind the
// other; rows behind the last one are not read, and in results not written. Weights [E, out, in] are read where they
// lie. FLOPs are told to a recorder for all R rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cuda/launch_point.h"

namespace metroplex::moe {

class GroupedProduct {
 public:
  GroupedProduct(const cuda::Target& target, int64_t experts);

  // x [R, in] -> [R, out].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& counts) const;
  // dy [R, out] -> [R, in].
  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& counts) const;
  // gradient [E, out, in] += dy^T x by expert, summed in at least fp32; it has the type of x, or a wider one.
  void add_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& counts) const;

 private:
  struct Call;
  void run(const Call& call) const;

  cuda::Target target_;
  at::Tensor
      arguments_;  // of the call under way: pointers, leading dimensions, rows (cuda/kernels/grouped_product.h)
};

// What multiplies on this device, for the log: "own tiles, AMX", "own panels, AVX-512", ...
std::string product_name(const cuda::Target& target, at::ScalarType dtype);

}  // namespace metroplex::moe
