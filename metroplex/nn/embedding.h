// Input of the model: word embeddings split over the tensor-parallel group by rows of the (padded) vocabulary,
// learned positions, token types, dropout. The result is [s (/tp with sequence parallelism), b, h].
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "config/model.h"
#include "nn/dropout.h"
#include "nn/layer_context.h"
#include "nn/microbatch.h"
#include "nn/param.h"
#include "nn/vocabulary.h"

namespace metroplex::nn {

// A [rows, h] table replicated on every rank, indexed by [b, s] integers (positions, token types). An index outside
// of the table gives a row of zeros.
class ReplicatedEmbedding {
 public:
  ReplicatedEmbedding(const std::string& name, int64_t rows, int64_t width, topology::Role role,
                      const LayerContext& context);
  // out [s (/tp), b, h] += rows of this rank's part of the sequence; without autograd.
  void add_to(const at::Tensor& out, const at::Tensor& indices_bs) const;
  void add_gradient(const at::Tensor& dout, const at::Tensor& indices_bs);
  // As a differentiable result of its own, [s (/tp), b, h].
  at::Tensor forward(const at::Tensor& indices_bs);
  Param& weight() { return weight_; }

 private:
  at::Tensor local_indices(const at::Tensor& indices_bs) const;
  comm::Group sp_;
  cuda::Target target_;
  Param weight_;
};

// The word embedding, or the untied output weight (`role`), as a parameter [local rows, width] with its padding.
struct VocabularyParamSpec {
  std::string name;
  int64_t vocab_size = 0, width = 0;
  topology::Role role = topology::Role::embedding;
};
std::shared_ptr<Param> make_vocabulary_param(const VocabularyParamSpec& spec, const VocabularyPart& part,
                                             const LayerContext& context);

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(std::shared_ptr<Param> weight, const VocabularyPart& part, const LayerContext& context);
  // tokens [b, s] -> [s (/tp), b, h], summed over the group; without autograd. A token outside the vocabulary gives a
  // row of zeros: tokens are checked where a microbatch is made (train/batch.h), not here.
  at::Tensor apply(const at::Tensor& tokens_bs) const;
  void add_gradient(const at::Tensor& dout, const at::Tensor& tokens_bs);
  Param& weight() { return *weight_; }
  const std::shared_ptr<Param>& shared_weight() const { return weight_; }

 private:
  comm::Group sp_, tp_reduce_;
  cuda::Target target_;
  VocabularyPart part_;
  std::shared_ptr<Param> weight_;
};

}  // namespace metroplex::nn
