// Cross entropy over a vocabulary split over the tensor-parallel group. Logits are neither gathered nor copied: two
// all-reduces of a few numbers per token combine the ranks' statistics. Backward overwrites the logits with their
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/group.h"
#include "device/launch_point.h"
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

// Returns the scalar sum of mask * loss over all tokens, both [s, b]. The sum is computed in fp64 and returned in the
// type of the losses.
at::Tensor masked_sum(const at::Tensor& losses, const at::Tensor& mask);

}  // namespace metroplex::nn
