// Cross entropy over a vocabulary split over the tensor-parallel group. Logits are never gathered, never copied: two
// small all-reduces combine row statistics, and backward overwrites the logits with their gradient.
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
  // a: loss = (1 - s) nll - s mean(log p) with s = a K / (K - 1) and K the whole unpadded vocabulary, for any tp.
  double label_smoothing = 0;
  cuda::Target target;
};

// logits [..., part.local_rows] of this rank (overwritten by backward: nothing else may read them then), targets
// [...] int64 global token numbers in the same order -> loss of each token [...], in at least fp32, equal on all
// ranks. A target outside the vocabulary has the logit 0 and no gradient of its own: see
// VocabParallelEmbedding::apply.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                        const CrossEntropySpec& spec);

// The scalar sum over tokens of mask * loss, in double inside, in the type of the losses; both [s, b].
at::Tensor masked_sum(const at::Tensor& losses, const at::Tensor& mask);

}  // namespace metroplex::nn
