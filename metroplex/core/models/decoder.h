// The embedding segment, the head segment, and the stage between them, for all decoder-only families.
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

nn::VocabularyShard vocabulary_shard(const ModelContext& context);

class EmbeddingSegment final : public nn::Segment {
 public:
  // `word_embeddings` is the word embedding, `site` the layer number of its dropout key.
  EmbeddingSegment(const ModelContext& context, std::shared_ptr<nn::Param> word_embeddings, int64_t site);
  const std::string& name() const override { return name_; }
  // Takes no values; reads batch.tokens and position_ids (0, 1, ... if undefined).
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;

 private:
  std::string name_ = "embedding";
  comm::Group sp_;
  bool fp32_residual_;
  double scale_;  // factor of the word embeddings
  nn::VocabParallelEmbedding word_embeddings_;
  std::optional<nn::ReplicatedEmbedding> positions_;
  nn::DropoutKey dropout_;
};

class HeadSegment final : public nn::Segment {
 public:
  // `weight` is the output layer's. Without `final_norm` the input is not normalized.
  HeadSegment(const ModelContext& context, std::shared_ptr<nn::Param> weight, bool final_norm);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;
  nn::SegmentTraits traits() const override { return {.defers_weights = defers_weights_}; }

 private:
  nn::Input normalize_input(const at::Tensor& x);
  at::Tensor compute_logits(const at::Tensor& x);
  at::Tensor compute_losses(const at::Tensor& x, const at::Tensor& labels);

  std::string name_ = "head";
  bool defers_weights_;
  comm::Group tp_;
  double scaling_;  // divisor of the logits
  double softcap_;  // 0: off
  nn::CrossEntropySpec loss_;
  nn::SavePolicy saving_;
  std::optional<nn::Norm> norm_;
  nn::Linear output_;
  std::optional<nn::LossChunks> chunks_;  // memory.loss_chunk_tokens > 0
};

// Returns batch.position_ids, or the positions of the batch's rows in the sequence.
at::Tensor make_position_ids(const nn::Microbatch& batch);

// Builds the embedding, layers and head selected by `stage`. `before_head` may insert a block between the last layer
// and the head; the head then has no norm.
using BeforeHead = nn::Block (*)(const ModelContext& context);
nn::Blocks build_decoder(const ModelContext& context, const StageSpec& stage, BeforeHead before_head = nullptr);

}  // namespace metroplex::models
