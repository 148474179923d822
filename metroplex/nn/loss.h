// Cross entropy over a vocabulary split over the tensor-parallel group. Logits are neither gathered nor copied: two
// all-reduces of a few numbers per token combine the ranks' statistics, and backward overwrites the logits with their
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/group.h"
#include "cuda/launch_point.h"
#include "nn/vocabulary.h"

namespace metroplex::nn {

struct CrossEntropySpec {
  comm::Group tp;
  VocabularyPart part;
  int64_t vocab_size = 0;
  // a, as Megatron defines it: loss = (1 - s) nll - s mean(log p), s = a K / (K - 1), K the unpadded vocabulary size.
  double label_smoothing = 0;
  cuda::Target target;
};

// logits [..., part.local_rows] of this rank (overwritten by backward: nothing else may read them then), targets
// [...] int64 global token ids in the same order -> loss of each token [...], in at least fp32, equal on all ranks.
// A target outside the vocabulary counts as logit 0 and gets no gradient: tokens are checked in train/batch.h.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                        const CrossEntropySpec& spec);

// The scalar sum of mask * loss over all tokens, both [s, b]; summed in double, returned in the type of the losses.
at::Tensor masked_sum(const at::Tensor& losses, const at::Tensor& mask);

}  // namespace metroplex::nn
