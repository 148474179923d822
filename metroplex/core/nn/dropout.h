// Dropout with the mask Philox(seed; step, global sample, layer, site, index in the unsharded tensor). The mask is
// the same in every parallel layout and in recompute, and has no generator state to save. Step and sample are
// stored in the microbatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "comm/group.h"
#include "kernels/dropout.h"
#include "device/launch_point.h"
#include "nn/microbatch.h"
#include "nn/param.h"
#include "nn/random_site.h"
#include "nn/wide.h"

namespace metroplex::nn {

struct DropoutKey {
  uint64_t seed = 0;
  int64_t layer = 0;  // global; the embedding uses 0
  RandomSite site = RandomSite::embedding;
  double probability = 0;
  device::Target target;

  bool active(const Microbatch& batch) const { return probability > 0 && batch.training; }
};

// Offset of a local activation [s (/tp), b, h] within the s rows of the microbatch.
struct SequenceOffset {
  int64_t first_row = 0;
};
// Returns the offset of this rank's rows when `sp` splits the sequence (layer_context.h).
SequenceOffset sequence_offset(const at::Tensor& x_sbh, const comm::Group& sp);

// residual + dropout(x + bias), differentiable in x and residual; the bias gradient is added to bias->main_grad.
// `bias` may be null and `residual` undefined. Overwrites x, which must be a contiguous temporary that no other code
// reads.
struct BiasDropoutAdd {
  DropoutKey key;
  Param* bias = nullptr;
  SequenceOffset location;
};
at::Tensor bias_dropout_add(const at::Tensor& x_sbh, const at::Tensor& residual, const BiasDropoutAdd& how,
                            const Microbatch& batch);

// The steps of bias_dropout_add, for operators that fuse it.

// Operands of the kernel. x and out may differ in type: then one is half, the other fp32. `bias` has the type of x,
// `residual` that of out; both may be undefined.
struct BiasDropoutAddOperands {
  at::Tensor x, bias, residual, out;

  template <class In, class Out>
  kernels::DropoutOperands<In, Out> elements_as() const {
    return {elements<In>(x), elements<In>(bias), elements<Out>(residual), elements<Out>(out)};
  }
};
// Chooses the output: in place over x if the residual has the type of x, otherwise a new tensor.
BiasDropoutAddOperands sum_operands(const at::Tensor& x_sbh, const at::Tensor& residual, const Param* bias);

// The mask as the kernels generate it; probability 0 if dropout is off.
struct DropoutMask {
  at::Tensor counters, rows;  // owners of the memory that `shape` points to, on the device of x
  kernels::DropoutShape shape;
};
DropoutMask hidden_mask(const at::Tensor& x_sbh, const BiasDropoutAdd& how, const Microbatch& batch);

// Location of attention probabilities [b, heads, queries, keys] of a rank in the unsharded tensor of a sample,
// [num_heads, whole sequence, keys]. `first_head` is a global head number.
struct ProbabilityLocation {
  int64_t first_head = 0;
  Positions queries;
};
DropoutMask probability_mask(const std::array<int64_t, 4>& sizes_bnqk, const DropoutKey& key,
                             const ProbabilityLocation& location, const Microbatch& batch);

// Location of x [s, b, width] in the unsharded [rows, num_shards * width] of a sample: column shard `shard` of
// `num_shards` equal shards, and the rows from `first_row`.
struct ColumnsLocation {
  int64_t first_row = 0;
  int num_shards = 1, shard = 0;
};
DropoutMask columns_mask(at::IntArrayRef sizes_sbw, const DropoutKey& key, const ColumnsLocation& location,
                         const Microbatch& batch);
// Returns x with a mask of probability p > 0 applied, as a new tensor: mask(x) / (1 - p).
at::Tensor with_mask(const device::Target& target, const at::Tensor& x, const DropoutMask& mask);

// State for backward; contains no activation.
struct BiasDropoutAddSaved {
  Param* bias = nullptr;
  DropoutMask mask;
  at::ScalarType x_type = at::kFloat;
  device::Target target;
};
// Returns the gradient of x from that of the sum; adds the bias gradient.
at::Tensor bias_dropout_add_backward(const at::Tensor& dy, const BiasDropoutAddSaved& saved);

}  // namespace metroplex::nn
