#include <ATen/ATen.h>

#include "models/block.h"
#include "models/decoder.h"
#include "models/families.h"
#include "nn/dropout_norm.h"
#include "nn/recompute.h"

namespace metroplex::models {
namespace {

// The top query layer (CodeGeeX, arXiv 2303.17568, section 2.2): h = norm_final(x); queries come from an embedding of
// the position, keys and values from norm(h); the residual is h; an MLP follows as in every layer. It replaces the
// final norm before the head.
class TopQuerySegment final : public nn::Segment {
 public:
  TopQuerySegment(const ModelContext& context, const nn::LayerContext& layer)
      : sp_(layer.sp),
        saving_(context.saving),
        final_norm_(norm_spec("decoder.final_layernorm", context.model, layer), layer),
        queries_("decoder.top_query_embeddings", context.model.max_position_embeddings, context.model.hidden_size,
                 topology::Role::weight, layer),
        input_norm_(norm_spec(name_ + ".input_layernorm", context.model, layer), layer),
        attention_({name_ + ".self_attention", context.model.num_layers, true}, context.model, layer, nullptr),
        mlp_norm_(norm_spec(name_ + ".pre_mlp_layernorm", context.model, layer), layer),
        mlp_(name_ + ".mlp", context.model, layer),
        attention_dropout_{context.seed, context.model.num_layers, nn::DropoutSite::attention_output,
                           context.model.hidden_dropout, context.target},
        mlp_dropout_{context.seed, context.model.num_layers, nn::DropoutSite::mlp_output,
                     context.model.hidden_dropout, context.target} {}

  const std::string& name() const override { return name_; }

  at::Tensor forward(const at::Tensor& x_sbh, const nn::Microbatch& batch) override {
    const nn::SequencePlace place = nn::sequence_place(x_sbh, sp_);
    const at::Tensor h = nn::normalize(final_norm_, x_sbh, saving_).x;
    const at::Tensor attended =
        attention_.forward(nn::normalize(input_norm_, h, saving_), batch, queries_.forward(positions_of(batch)));
    const nn::ResidualAndNorm y = nn::bias_dropout_add_norm(
        attended, h, {{attention_dropout_, attention_.output_bias(), place}, &mlp_norm_, saving_}, batch);
    return nn::bias_dropout_add(mlp_.forward(y.normed), y.h, {mlp_dropout_, mlp_.output_bias(), place}, batch);
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    final_norm_.collect_params(params);
    params.push_back(&queries_.weight());
    input_norm_.collect_params(params);
    attention_.collect_params(params);
    mlp_norm_.collect_params(params);
    mlp_.collect_params(params);
  }

 private:
  std::string name_ = "decoder.top_query_layer";
  comm::Group sp_;
  nn::SavePolicy saving_;
  nn::Norm final_norm_;
  nn::ReplicatedEmbedding queries_;
  nn::Norm input_norm_;
  nn::SelfAttention attention_;
  nn::Norm mlp_norm_;
  nn::Mlp mlp_;
  nn::DropoutKey attention_dropout_, mlp_dropout_;
};

std::unique_ptr<nn::Segment> top_query(const ModelContext& context) {
  return std::make_unique<TopQuerySegment>(context, layer_context(context));
}

}  // namespace

Segments build_codegeex(const ModelContext& context, const StageSlice& slice) {
  return build_decoder(context, slice, top_query);
}

}  // namespace metroplex::models
