// A transformer layer as a block of two segments: h = x + dropout(attention(norm(x))) and y = h +
// dropout(mlp(norm(h))), with the factors of nn/residual.h. With model.sandwich_norm another norm is applied inside
// each dropout; with model.pre_norm = false that is the only one. Both segments return their sum pending, so that the
// following norm fuses it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/residual.h"
#include "nn/segment.h"

namespace metroplex::models {

// Spec of a norm whose input is sharded over the ranks of context.sp.
nn::NormSpec norm_spec(const std::string& name, const config::Model& model, const nn::LayerContext& context);
// Returns null if the model has no rotary positions. One table serves all layers of a stage; it covers the context's
// positions from the start. `local`: for window layers with model.rotary_base_local.
std::shared_ptr<nn::RopeTable> make_rope(const ModelContext& context, bool local = false);
// The table of layers without rotary positions: null unless model.query_scaling_floor scales their queries.
std::shared_ptr<nn::RopeTable> make_query_scaling(const ModelContext& context);

struct LayerSpec {
  std::string name;   // decoder.layers.<global number>
  int64_t layer = 0;  // global layer number: key of dropout and KV cache
  // The queries are computed from the value kQueries, [s (/tp), b, h], instead of the hidden states.
  bool has_external_query = false;
};
inline constexpr const char* kQueries = "queries";

// The mixer of a layer: attention, linear attention, or Mamba-2.
class AttentionSegment final : public nn::Segment {
 public:
  AttentionSegment(const LayerSpec& spec, const config::Model& model, const nn::LayerContext& context,
                   std::shared_ptr<nn::RopeTable> rope);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;
  nn::SegmentTraits traits() const override {
    return {.module = mamba_ ? config::CudaGraphModule::mamba : config::CudaGraphModule::attn};
  }

 private:
  bool mamba_;
  std::string name_;
  comm::Group sp_;
  bool has_external_query_;
  at::ScalarType type_;
  nn::SavePolicy saving_;
  nn::DropoutKey dropout_;
  std::optional<nn::Norm> norm_;
  std::unique_ptr<nn::Attention> attention_;
  std::optional<nn::Norm> post_norm_;
  nn::Residual residual_;
};

class FeedForwardSegment final : public nn::Segment {
 public:
  FeedForwardSegment(const LayerSpec& spec, const config::Model& model, const nn::LayerContext& context);
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override;
  void collect_params(std::vector<nn::Param*>& params) override;
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::mlp}; }

 private:
  std::string name_;
  comm::Group sp_;
  at::ScalarType type_;
  nn::SavePolicy saving_;
  nn::DropoutKey dropout_;
  std::optional<nn::Norm> norm_;
  nn::Mlp mlp_;
  std::optional<nn::Norm> post_norm_;
  nn::Residual residual_;
};

// The segment of a layer with model.parallel_attention_mlp.
std::unique_ptr<nn::Segment> make_parallel_segment(const LayerSpec& spec, const ModelContext& context,
                                                   std::shared_ptr<nn::RopeTable> rope);
// Appends the attention segment and the feed-forward segments of this layer, dense or with experts.
void add_layer_segments(nn::Block& block, const LayerSpec& spec, const ModelContext& context,
                        std::shared_ptr<nn::RopeTable> rope);

}  // namespace metroplex::models
