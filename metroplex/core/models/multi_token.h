// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2). After the last layer of the model, prediction
// layer k of D predicts the token k + 1 ahead. Its input is a projection of two concatenated norms: of the embedding
// of the token k ahead, and of the hidden states that layer k - 1 (0: the model) passed to the head. Embedding and
// output layer are shared with the model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "nn/rope.h"

namespace metroplex::models {

// Parameters and tables of the model shared by all prediction layers.
struct SharedModules {
  std::shared_ptr<nn::Param> word_embeddings, output;  // word embedding and output layer's weight; null if unused
  std::shared_ptr<nn::RopeTable> rope;
};

// Returns whether the prediction layers run: only in training with labels.
bool has_predictions(const nn::Microbatch& batch);
// Name of the value [s (/tp), b, h] that layer `depth` (from 1) passes to the head and the next layer.
std::string predicted_name(int64_t depth);

// The microbatch whose position i has the data of position i + by of `now`. Rotary positions are unchanged, because
// only relative distances matter. Collective over cp, whose ranks exchange tokens, labels and masks.
struct BatchAhead {
  nn::Microbatch batch;
  at::Tensor mask, mask_ahead;  // [b, whole s]: loss masks of `now` and of `batch`

  BatchAhead(const nn::Microbatch& now, int64_t by, const comm::Group& cp);
  // As in Megatron, the mean over the tokens still predicted has the weight of a mean over the microbatch.
  at::Tensor loss_weight() const;
};

// Computes the loss term "mtp_<depth> loss" of one layer's prediction.
class MultiTokenLoss {
 public:
  MultiTokenLoss(const ModelContext& context, int64_t depth, std::shared_ptr<nn::Param> output);
  // `ahead`: of context.batch, by `depth` positions.
  void add(const at::Tensor& predicted, const BatchAhead& ahead, nn::SegmentContext& context);
  void collect_params(std::vector<nn::Param*>& params) { head_.collect_params(params); }

 private:
  int64_t depth_;
  double factor_;  // scale of the loss
  HeadSegment head_;
};

// A prediction layer. kHiddenStates pass through it to the head. The first layer applies the model's final norm to
// them, and the head then has none. Without shared.output the head is in another stage, and the segment also
// returns the predictions of all layers so far.
class MultiTokenSegment final : public nn::Segment {
 public:
  MultiTokenSegment(const ModelContext& context, int64_t depth, const SharedModules& shared);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;
  void collect_buffers(std::vector<nn::Buffer*>& buffers) override;
  void collect_step_counts(std::vector<at::Tensor>& counts) override;
  nn::SegmentTraits traits() const override;

 private:
  at::Tensor project_inputs(const at::Tensor& before, const nn::Microbatch& ahead, nn::SegmentContext& context);
  nn::Values pass_values(const nn::Values& in, const at::Tensor& model, const at::Tensor& before) const;

  std::string name_;
  int64_t depth_, layers_;
  bool fp32_residual_;
  comm::Group cp_;
  nn::SavePolicy saving_;
  std::optional<nn::Norm> model_norm_;  // first layer only
  EmbeddingSegment embedding_;
  nn::Norm embedding_norm_, hidden_norm_, final_norm_;
  nn::Linear projection_;
  nn::Block layer_;
  std::optional<MultiTokenLoss> loss_;
};

// Computes the loss of one prediction layer of another stage; the other values pass through.
class MultiTokenLossSegment final : public nn::Segment {
 public:
  MultiTokenLossSegment(const ModelContext& context, int64_t depth, std::shared_ptr<nn::Param> output);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override { loss_.collect_params(params); }
  nn::SegmentTraits traits() const override { return {.defers_weights = false}; }

 private:
  std::string name_, input_name_;
  int64_t depth_;
  comm::Group cp_;
  MultiTokenLoss loss_;
};

nn::Blocks multi_token_layers(const ModelContext& context, const SharedModules& shared);
nn::Blocks multi_token_losses(const ModelContext& context, const std::shared_ptr<nn::Param>& output);

}  // namespace metroplex::models
