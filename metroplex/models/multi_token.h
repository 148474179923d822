// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): behind the last layer of the model, layer k of
// D predicts the token k + 1 ahead. Its input is a projection of two norms side by side, those of the embedding of
// the token k ahead and of what layer k - 1 (0: the model) gave the head; embedding and output layer are the model's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "nn/rope.h"

namespace metroplex::models {

// The parts of the model that all layers for prediction share.
struct SharedParts {
  std::shared_ptr<nn::Param> words, output;  // word embedding and weight of the output layer; null where not needed
  std::shared_ptr<nn::RopeTable> rope;
};

// Whether the layers predict: in training.
bool predicts_ahead(const nn::Microbatch& batch);
// The value [s (/tp), b, h] that layer `depth`, from 1, gives the head and the layer after it.
std::string predicted_name(int64_t depth);

// The loss of what one layer predicts: the loss term "mtp_<depth> loss".
class MultiTokenLoss {
 public:
  MultiTokenLoss(const ModelContext& context, int64_t depth, std::shared_ptr<nn::Param> output);
  // `ahead` is the microbatch of `context`, `depth` positions ahead.
  void add(const at::Tensor& predicted, const nn::Microbatch& ahead, nn::SegmentContext& context);
  void collect_params(std::vector<nn::Param*>& params) { head_.collect_params(params); }

 private:
  int64_t depth_;
  double factor_;  // of the loss
  HeadSegment head_;
};

// One of the layers. kHiddenStates pass through it for the head; the first layer applies the model's final norm to
// them, and the head then has none. Without shared.output the head is in another stage, and the segment hands on
// what every layer so far predicts.
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
  nn::Values passed_on(const nn::Values& in, const at::Tensor& model, const at::Tensor& before) const;

  std::string name_;
  int64_t depth_, layers_;
  bool fp32_residual_;
  nn::SavePolicy saving_;
  std::optional<nn::Norm> model_norm_;  // of the first
  EmbeddingSegment embedding_;
  nn::Norm embedding_norm_, hidden_norm_, final_norm_;
  nn::ReplicatedLinear projection_;
  nn::Block layer_;
  std::optional<MultiTokenLoss> loss_;
};

// Takes the loss of one layer of another stage; the other values pass through it.
class MultiTokenLossSegment final : public nn::Segment {
 public:
  MultiTokenLossSegment(const ModelContext& context, int64_t depth, std::shared_ptr<nn::Param> output);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override { loss_.collect_params(params); }

 private:
  std::string name_, takes_;
  int64_t depth_;
  MultiTokenLoss loss_;
};

// The layers of the model, one a block.
nn::Blocks multi_token_layers(const ModelContext& context, const SharedParts& shared);
// The losses of layers in another stage, one a block.
nn::Blocks multi_token_losses(const ModelContext& context, const std::shared_ptr<nn::Param>& output);

}  // namespace metroplex::models
