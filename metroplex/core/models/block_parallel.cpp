#include "models/block.h"

#include <ATen/ATen.h>

namespace metroplex::models {
namespace {

// y = stream x + dropout(result (attention(norm(x)) + mlp(norm(x)))), with the factors of nn/residual.h.
class ParallelSegment final : public nn::Segment {
 public:
  ParallelSegment(const LayerSpec& spec, const config::Model& model, const nn::LayerContext& context,
                  std::shared_ptr<nn::RopeTable> rope)
      : name_(spec.name + ".self_attention"),
        sp_(context.sp),
        saving_(context.saving),
        dropout_{context.seed, spec.layer, nn::RandomSite::attention_output, model.hidden_dropout, context.target},
        norm_(norm_spec(spec.name + ".input_layernorm", model, context), context),
        attention_(nn::make_attention({name_, spec.layer}, model, context, std::move(rope))),
        mlp_(spec.name + ".mlp", model, context),
        residual_(model, config::mixer_residual(model, {})) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const nn::ResidualAndNorm x =
        residual_.connect(nn::residual_and_norm(in.at(nn::kHiddenStates), &norm_, saving_, context.batch));
    const nn::ResidualAndNorm readers = nn::fork_sum(x.normed.x);
    const at::Tensor attention_out = attention_->forward({readers.h, x.normed.recomputed}, context.batch);
    const at::Tensor mlp_out = mlp_.forward({readers.normed.x, x.normed.recomputed}, context.batch);
    const at::Tensor out = residual_.scale(at::add(attention_out, mlp_out));
    return {nn::kHiddenStates, nn::PendingSum{out, x.h, {dropout_, nullptr, nn::sequence_offset(x.h, sp_)}}};
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    norm_.collect_params(params);
    attention_->collect_params(params);
    mlp_.collect_params(params);
  }

 private:
  std::string name_;
  comm::Group sp_;
  nn::SavePolicy saving_;
  nn::DropoutKey dropout_;
  nn::Norm norm_;
  std::unique_ptr<nn::Attention> attention_;
  nn::Mlp mlp_;
  nn::Residual residual_;
};

}  // namespace

std::unique_ptr<nn::Segment> make_parallel_segment(const LayerSpec& spec, const ModelContext& context,
                                                   std::shared_ptr<nn::RopeTable> rope) {
  return std::make_unique<ParallelSegment>(spec, context.model, context, std::move(rope));
}

}  // namespace metroplex::models
