// What all decoder-only families share: the embedding segment, the head segment, and the stage in between.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/registry.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/norm.h"

namespace metroplex::models {

nn::VocabularyPart vocabulary_of(const ModelContext& context);

class EmbeddingSegment final : public nn::Segment {
 public:
  // `words` is the word embedding, `site` the number that its dropout is drawn by.
  EmbeddingSegment(const ModelContext& context, std::shared_ptr<nn::Param> words, int64_t site);
  const std::string& name() const override { return name_; }
  // Takes no values; reads batch.tokens and position_ids (0, 1, ... when undefined).
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;

 private:
  std::string name_ = "embedding";
  comm::Group sp_;
  bool fp32_residual_;
  double scale_;  // of word embeddings
  nn::VocabParallelEmbedding words_;
  std::optional<nn::ReplicatedEmbedding> positions_;
  nn::DropoutKey dropout_;
};

class HeadSegment final : public nn::Segment {
 public:
  // `weight` is that of the output layer. Without `final_norm` the input is used as it is.
  HeadSegment(const ModelContext& context, std::shared_ptr<nn::Param> weight, bool final_norm);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;

 private:
  std::string name_ = "head";
  comm::Group tp_;
  double softcap_;  // 0: none
  nn::CrossEntropySpec loss_;
  nn::SavePolicy saving_;
  std::optional<nn::Norm> norm_;
  nn::ColumnParallelLinear output_;
};

// Positions of a microbatch: batch.position_ids, or its rows of the sequence.
at::Tensor positions_of(const nn::Microbatch& batch);

// Embedding, layers and head as the slice says; `before_head` may put a block between the last layer and the head,
// which then has no norm of its own.
using BeforeHead = nn::Block (*)(const ModelContext& context);
nn::Blocks build_decoder(const ModelContext& context, const StageSlice& slice, BeforeHead before_head = nullptr);

}  // namespace metroplex::models
