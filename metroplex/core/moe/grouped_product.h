// Grouped matrix products of a layer's experts: all local groups in one call, with the row counts only on the device.
// `counts` [groups] int64 are the numbers of consecutive rows of an activation [R, width] in each group. Rows after
// the last group are neither read nor written. The first groups are local experts, the others replicas; both are used
// in place. The recorder gets the FLOPs of all R rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "kernels/grouped_product.h"
#include "device/launch_point.h"

namespace metroplex::moe {

// One matrix [out, in] per group. Row tensors also convert to it.
struct GroupedWeights {
  GroupedWeights(at::Tensor home, at::Tensor replicas = {},  // NOLINT: a stack of home experts alone is one
                 at::Tensor factors = {})
      : home(std::move(home)), replicas(std::move(replicas)), factors(std::move(factors)) {}
  at::Tensor home;      // [local experts, out, in]
  at::Tensor replicas;  // [slots, out, in], same type; undefined without slots
  // [groups] fp32, the last ones of replicas: the operand's values are its elements times these; undefined: 1.
  at::Tensor factors;
};

// Rows of each group. Tensors of counts also convert to it.
struct GroupCounts {
  GroupCounts(at::Tensor counts, at::Tensor ends = {})  // NOLINT: see GroupedWeights
      : counts(std::move(counts)), ends(std::move(ends)) {}
  at::Tensor counts;  // [groups] int64
  at::Tensor ends;    // [groups] int32, see kernels::group_ends; undefined: computed for each product of the library
};

class GroupedProduct {
 public:
  // `capability`: of the GPU that runs the products; -1: detect. `fill`: fraction of the buffers that holds rows
  // under even load, for the FLOPs that a recorder sees.
  GroupedProduct(const device::Target& target, int64_t groups, int capability = -1, double fill = 1);

  // Computes the ends once for several products of R rows of `type`, if libtorch may run them.
  GroupCounts with_ends(const at::Tensor& counts, int64_t rows, at::ScalarType type) const;
  // Returns y or dx of forward or input_gradient, by libtorch if that is faster and no operand has factors.
  at::Tensor rows(kernels::GroupedOp op, const GroupedWeights& rows, const GroupedWeights& weights,
                  const GroupCounts& counts) const;
  // All tensors are contiguous. forward: a = x [R, in], b = weights, c = y [R, out]. input_gradient: a = dy, b =
  // weights, c = dx. weight_gradient: a = dy, b = x; a^T b by group is summed in at least fp32. It is added to c, the
  // gradients of local experts, or overwrites them if `adds` is false. Gradients of replicas are always overwritten,
  // with zeros for groups without rows. c has the type of x or a wider one, and no factors. Factors of operands
  // multiply the sums.
  void run(kernels::GroupedOp op, const GroupedWeights& a, const GroupedWeights& b, const GroupedWeights& weights,
           const GroupCounts& counts, bool adds = true) const;

 private:
  // `reads`: the stack is an input; otherwise it is the gradient.
  bool by_library(const GroupedWeights& rows, const GroupedWeights& stack, bool reads) const;

  device::Target target_;
  int capability_;
  double fill_;
  at::Tensor arguments_;  // see kernels/grouped_product.h
};

}  // namespace metroplex::moe
