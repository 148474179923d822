// Input of the model: word embeddings split over the tensor-parallel group by rows of the padded vocabulary, learned
// positions, token types and dropout. The result is [s (/tp with sequence parallelism), b, h].
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
// the table gives a row of zeros.
class ReplicatedEmbedding {
 public:
  ReplicatedEmbedding(const std::string& name, int64_t rows, int64_t width, topology::Role role,
                      const LayerContext& context);
  // Adds to out [s (/tp), b, h] the rows for this rank's shard of the sequence; without autograd.
  void add_to(const at::Tensor& out, const at::Tensor& indices_bs) const;
  void add_gradient(const at::Tensor& dout, const at::Tensor& indices_bs);
  // Returns the rows as a differentiable tensor, [s (/tp), b, h].
  at::Tensor forward(const at::Tensor& indices_bs);
  Param& weight() { return weight_; }

 private:
  at::Tensor local_indices(const at::Tensor& indices_bs) const;
  comm::Group sp_;
  device::Target target_;
  Param weight_;
};

// The word embedding or the untied output weight (`role`), as a parameter [local rows, width] including padding.
struct VocabularyParamSpec {
  std::string name;
  int64_t vocab_size = 0, width = 0;
  topology::Role role = topology::Role::embedding;
};
std::shared_ptr<Param> make_vocabulary_param(const VocabularyParamSpec& spec, const VocabularyShard& shard,
                                             const LayerContext& context);

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(std::shared_ptr<Param> weight, const VocabularyShard& shard, const LayerContext& context);
  // Maps tokens [b, s] to [s (/tp), b, h], summed over the group; without autograd. A token outside the vocabulary
  // gives a row of zeros. step/batch.h validates tokens when it creates a microbatch.
  at::Tensor apply(const at::Tensor& tokens_bs) const;
  void add_gradient(const at::Tensor& dout, const at::Tensor& tokens_bs);
  Param& weight() { return *weight_; }
  const std::shared_ptr<Param>& shared_weight() const { return weight_; }

 private:
  comm::Group sp_, tp_reduce_;
  device::Target target_;
  VocabularyShard shard_;
  std::shared_ptr<Param> weight_;
};

}  // namespace metroplex::nn
