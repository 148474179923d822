
#include "models/block.h"

#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {
namespace {

// The segment before the attention of the top query layer (CodeGeeX, arXiv 2303.17568, section 2.2): h =
// norm_final(x), and queries from an embedding of the position. Keys and values are computed from norm(h), and the
// residual is h. The block replaces the final norm before the head.
class TopQuerySegment final : public nn::Segment {
 public:
  explicit TopQuerySegment(const ModelContext& context)
      : saving_(context.saving),
        norm_(norm_spec("decoder.final_layernorm", context.model, context), context),
        queries_("decoder.top_query_embeddings", context.model.max_position_embeddings, context.model.hidden_size,
                 topology::Role::weight, context) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::Values out(nn::kHiddenStates, nn::normalize(norm_, in.tensor(nn::kHiddenStates), saving_).x);
    out.add(kQueries, queries_.forward(make_position_ids(context.batch)));
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    norm_.collect_params(params);
    params.push_back(&queries_.weight());
  }

 private:
  std::string name_ = "decoder.top_query_layer.queries";
  nn::SavePolicy saving_;
  nn::Norm norm_;
  nn::ReplicatedEmbedding queries_;
};

nn::Block top_query_layer(const ModelContext& context) {
  nn::Block block{"decoder.top_query_layer", false, {}};
  block.segments.push_back(std::make_unique<TopQuerySegment>(context));
  add_layer_segments(block, {block.name, context.model.num_layers, true}, context, nullptr);
  return block;
}

}  // namespace

// GPT with a final layer whose queries are an embedding of the predicted position.
nn::Blocks build_codegeex(const ModelContext& context, const StageSpec& stage) {
  return build_decoder(context, stage, top_query_layer);
}

}  // namespace metroplex::models
