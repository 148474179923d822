// Dropout whose mask is Philox(seed; step, global sample, layer, site, index in the unsharded tensor): the same in
// every layout and in recompute, with no generator state to save. Step and sample come with the microbatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "comm/group.h"
#include "cuda/kernels/dropout.h"
#include "cuda/launch_point.h"
#include "nn/microbatch.h"
#include "nn/param.h"
#include "nn/random_site.h"
#include "nn/wide.h"

namespace metroplex::nn {

// Which dropout of the model this is, and where it runs.
struct DropoutKey {
  uint64_t seed = 0;
  int64_t layer = 0;  // global; the embedding has none and takes 0
  RandomSite site = RandomSite::embedding;
  double probability = 0;
  cuda::Target target;

  bool active(const Microbatch& batch) const { return probability > 0 && batch.training; }
};

// The offset of a local activation [s (/tp), b, h] in the s rows of the microbatch.
struct SequencePlace {
  int64_t first_row = 0;
};
// The place of this rank's part of a sequence that the ranks of `sp` split (layer_context.h).
SequencePlace sequence_place(const at::Tensor& x_sbh, const comm::Group& sp);

// residual + dropout(x + bias), differentiable in x and residual; the bias gradient goes to bias->main_grad. `bias`
// may be null and `residual` undefined. Overwrites x, which must be a fresh result that no one else reads.
struct BiasDropoutAdd {
  DropoutKey key;
  Param* bias = nullptr;
  SequencePlace place;
};
at::Tensor bias_dropout_add(const at::Tensor& x_sbh, const at::Tensor& residual, const BiasDropoutAdd& how,
                            const Microbatch& batch);

// The parts of bias_dropout_add, for what is fused with it.

// Operands of its kernel: x and out may differ in type, one of them is then half, the other fp32. bias is like
// x, residual like out; both may be undefined.
struct BiasDropoutAddOperands {
  at::Tensor x, bias, residual, out;

  template <class In, class Out>
  cuda::kernels::DropoutOperands<In, Out> elements_as() const {
    return {elements<In>(x), elements<In>(bias), elements<Out>(residual), elements<Out>(out)};
  }
};
// Chooses where the sum goes: over x where the residual has its type, else to a new tensor.
BiasDropoutAddOperands sum_operands(const at::Tensor& x_sbh, const at::Tensor& residual, const Param* bias);

// The mask as kernels draw it; probability 0 where the dropout is off.
struct DropoutMask {
  at::Tensor counters, rows;  // what `shape` points to, on the device of x
  cuda::kernels::DropoutShape shape;
};
DropoutMask hidden_mask(const at::Tensor& x_sbh, const BiasDropoutAdd& how, const Microbatch& batch);

// Of attention probabilities [b, heads, queries, keys] of a rank. Heads from `first_head` of the global ones; the
// unsharded tensor of a sample is [num_heads, whole sequence, keys].
struct ProbabilityPlace {
  int64_t first_head = 0;
  Positions queries;
};
DropoutMask probability_mask(const std::array<int64_t, 4>& sizes_bnqk, const DropoutKey& key,
                             const ProbabilityPlace& place, const Microbatch& batch);

// Of `sizes` [s, b, width]: the columns of part `part` of `parts` equal ones of the unsharded [rows, parts * width]
// of a sample, and the rows from `first_row`.
struct ColumnsPlace {
  int64_t first_row = 0;
  int parts = 1, part = 0;
};
DropoutMask columns_mask(at::IntArrayRef sizes_sbw, const DropoutKey& key, const ColumnsPlace& place,
                         const Microbatch& batch);
// x with a mask that drops something, as a new tensor: mask(x) / (1 - p).
at::Tensor with_mask(const cuda::Target& target, const at::Tensor& x, const DropoutMask& mask);

// What backward needs: no activation.
struct BiasDropoutAddSaved {
  Param* bias = nullptr;
  DropoutMask mask;
  at::ScalarType x_type = at::kFloat;
  cuda::Target target;
};
// The gradient of x out of that of the sum; adds the bias gradient.
at::Tensor bias_dropout_add_backward(const at::Tensor& dy, const BiasDropoutAddSaved& saved);

}  // namespace metroplex::nn
