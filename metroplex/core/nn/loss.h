// Cross entropy over a vocabulary split over the tensor-parallel group. Logits are neither gathered nor copied: two
// all-reduces of a few numbers per token combine the ranks' statistics. Backward overwrites the logits with their
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/group.h"
#include "device/launch_point.h"
#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/saved.h"
#include "nn/vocabulary.h"

namespace metroplex::nn {

struct CrossEntropySpec {
  comm::Group tp;
  VocabularyShard shard;
  int64_t vocab_size = 0;
  // a, as in Megatron: loss = (1 - s) nll - s mean(log p), s = a K / (K - 1), K the unpadded vocabulary size.
  double label_smoothing = 0;
  device::Target target;
};

// Returns the loss of each token, in at least fp32 and equal on all ranks. `logits` [..., part.local_rows] are those
// of this rank; backward overwrites them, so no other code may read them then. `targets` [...] int64 are global token
// ids in the same order. A target outside the vocabulary counts as logit 0 and gets no gradient; step/batch.h
// validates tokens.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                        const CrossEntropySpec& spec);

// Soft cap of logits: `capped` = cap * share, share = tanh(x / cap). The gradient of x is dy (1 - share^2).
struct SoftCap {
  at::Tensor share, capped;
};
SoftCap apply_softcap(const at::Tensor& x, double cap);
at::Tensor softcap_gradient(const at::Tensor& dy, const at::Tensor& share);

// The output layer and the cross entropy of its logits for a few rows at a time, so that the logits never exist as a
// whole. Backward computes the logits of each chunk again, from the saved input.
class LossChunks {
 public:
  // `weight` [local rows of the vocabulary, h] must outlive the object.
  LossChunks(Param& weight, CrossEntropySpec spec, const LayerContext& context);

  int64_t tokens = 0;               // memory.loss_chunk_tokens; the last chunk may be smaller
  double divisor = 1, softcap = 0;  // of the logits; softcap 0: none

  // Returns the losses [s, b] that vocab_parallel_cross_entropy() returns for the logits of `in`. in.x: [s, b, h],
  // with sequence parallelism [s/tp, b, h]; targets [s, b].
  at::Tensor forward(const Input& in, const at::Tensor& targets) const;

 private:
  struct Logits {
    at::Tensor logits, share;  // share: SoftCap::share
  };
  struct SavedRows;
  Logits make_logits(const at::Tensor& rows) const;
  void backward_chunks(const SavedRows& saved, const at::Tensor& dx, at::Tensor* main_grad, bool adds) const;

  Param& weight_;
  CrossEntropySpec spec_;
  bool wide_logits_;  // precision.output_logit_dtype: fp32
  comm::Group sp_, tp_reduce_;
  SavePolicy saving_;
};

// Returns the scalar sum of mask * loss over all tokens, both [s, b]. The sum is computed in fp64 and returned in the
// type of the losses.
at::Tensor masked_sum(const at::Tensor& losses, const at::Tensor& mask);

}  // namespace metroplex::nn
