// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): behind the last layer of the model, layer k of
// D predicts the token k + 1 ahead. Its input is a projection of two norms side by side, those of the embedding of
// the token k ahead and of what layer k - 1 (0: the model) gave the head; embedding and output layer are the model's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder.h"

namespace metroplex::models {

// The parts of the model that all layers for prediction share.
struct SharedParts {
  std::shared_ptr<nn::Param> words, output;  // word embedding and weight of the output layer
  std::shared_ptr<nn::RopeTable> rope;
};

// One of them; in training its loss is the loss term "mtp_<k> loss". kHiddenStates pass through it for the head, but
// that the first applies the model's final norm, which the head then has not.
class MultiTokenSegment final : public nn::Segment {
 public:
  // `depth` from 1.
  MultiTokenSegment(const ModelContext& context, int64_t depth, const SharedParts& shared);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;
  void collect_buffers(std::vector<nn::Buffer*>& buffers) override;
  void collect_step_counts(std::vector<at::Tensor>& counts) override;
  nn::SegmentTraits traits() const override;

 private:
  at::Tensor joined(const at::Tensor& before, const nn::Microbatch& ahead, nn::SegmentContext& context);
  at::Tensor weighted(const at::Tensor& loss_sum, const nn::Microbatch& batch, const nn::Microbatch& ahead) const;

  std::string name_;
  int64_t depth_, layers_;
  double factor_;  // of its loss
  bool fp32_residual_;
  nn::SavePolicy saving_;
  std::optional<nn::Norm> model_norm_;  // of the first
  EmbeddingSegment embedding_;
  nn::Norm embedding_norm_, hidden_norm_, final_norm_;
  nn::ReplicatedLinear projection_;
  nn::Block layer_;
  HeadSegment head_;
};

// Those of the model, one a block.
nn::Blocks multi_token_layers(const ModelContext& context, const SharedParts& shared);

}  // namespace metroplex::models
