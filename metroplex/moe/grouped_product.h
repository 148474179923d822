// The products of the experts of a layer, all local groups in one call, with the number of rows of each only on the
// device. `counts` [groups] int64 says how many rows of an activation [R, width] belong to each group, one behind the
// other; rows behind the last one are not read, and in results not written. Weights are read where they lie: the
// first groups are home experts, those behind them clones. FLOPs are told to a recorder for all R rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "cuda/kernels/grouped_product.h"
#include "cuda/launch_point.h"

namespace metroplex::moe {

// A matrix [out, in] for each group; rows of activations convert to one too.
struct GroupedWeights {
  GroupedWeights(at::Tensor home, at::Tensor clones = {})  // NOLINT: a stack of home experts alone is one
      : home(std::move(home)), clones(std::move(clones)) {}
  at::Tensor home;    // [home experts, out, in]
  at::Tensor clones;  // [slots, out, in], of the same type; undefined without slots
};

class GroupedProduct {
 public:
  // `capability`: of the GPU that multiplies; -1: of the one that is there.
  GroupedProduct(const cuda::Target& target, int64_t groups, int capability = -1);

  // The new y or dx of forward or input_gradient (run), by libtorch where that is the quicker one.
  at::Tensor rows(cuda::kernels::GroupedOp op, const at::Tensor& rows, const GroupedWeights& weights,
                  const at::Tensor& counts) const;
  // All contiguous. forward: a = x [R, in], b = weights, c = y [R, out]. input_gradient: a = dy, b = weights, c = dx.
  // weight_gradient: a = dy, b = x; a^T b by group, summed in at least fp32, is added to c, the gradients of home
  // experts, or with `adds` false written there, and written to those of clones, zeros where there are no rows; c has
  // the type of x, or a wider one.
  void run(cuda::kernels::GroupedOp op, const GroupedWeights& a, const GroupedWeights& b, const GroupedWeights& c,
           const at::Tensor& counts, bool adds = true) const;

 private:
  // `reads`: the stack's weights are read, else their gradients written.
  bool by_library(const at::Tensor& rows, const GroupedWeights& stack, bool reads) const;

  cuda::Target target_;
  int capability_;
  at::Tensor
      arguments_;  // of the call under way: pointers, leading dimensions, rows (cuda/kernels/grouped_product.h)
};

}  // namespace metroplex::moe
