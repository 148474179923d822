#include "models/block.h"

#include <cmath>

#include "base/error.h"
#include "nn/dropout_norm.h"
#include "nn/recompute.h"

namespace metroplex::models {

nn::NormSpec norm_spec(const std::string& name, const config::Model& model, const nn::LayerContext& context) {
  MPX_CHECK(model.normalization == "LayerNorm" || model.normalization == "RMSNorm", "models",
            "model.normalization = '", model.normalization, "' is unknown; use LayerNorm or RMSNorm");
  return {name, model.hidden_size, model.normalization == "RMSNorm", model.layernorm_epsilon, context.sp_axes};
}

std::shared_ptr<nn::RopeTable> make_rope(const config::Model& model, const cuda::Target& target) {
  if (model.position_embedding_type != "rope") return nullptr;
  const int64_t head_dim = nn::head_layout(model, 1).head_dim;
  const auto rotary = static_cast<int64_t>(static_cast<double>(head_dim) * model.rotary_percent);
  MPX_CHECK(rotary > 0 && rotary % 2 == 0, "models", "model.rotary_percent = ", model.rotary_percent,
            " of head size ", head_dim, " gives ", rotary, " rotary dimensions; they must be even and positive");
  return std::make_shared<nn::RopeTable>(rotary, model.rotary_base, target);
}

Block::Block(const BlockSpec& spec, const config::Model& model, const nn::LayerContext& context,
             std::shared_ptr<nn::RopeTable> rope)
    : spec_(spec),
      sp_(context.sp),
      saving_(context.saving),
      attention_dropout_{context.seed, spec.layer, nn::DropoutSite::attention_output, model.hidden_dropout,
                         context.target},
      mlp_dropout_{context.seed, spec.layer, nn::DropoutSite::mlp_output, model.hidden_dropout, context.target},
      input_norm_(norm_spec(spec.name + ".input_layernorm", model, context), context),
      attention_({spec.name + ".self_attention", spec.layer, false}, model, context, std::move(rope)),
      mlp_norm_(norm_spec(spec.name + ".pre_mlp_layernorm", model, context), context),
      mlp_(spec.name + ".mlp", model, context) {}

at::Tensor Block::forward(const at::Tensor& x_sbh, const nn::Microbatch& batch) {
  const nn::SequencePlace place = nn::sequence_place(x_sbh, sp_);
  const at::Tensor attended = attention_.forward(nn::normalize(input_norm_, x_sbh, saving_), batch);
  const nn::BiasDropoutAdd attention_sum{attention_dropout_, attention_.output_bias(), place};
  const auto [h, normed] = nn::bias_dropout_add_norm(attended, x_sbh, {attention_sum, &mlp_norm_, saving_}, batch);
  return nn::bias_dropout_add(mlp_.forward(normed), h, {mlp_dropout_, mlp_.output_bias(), place}, batch);
}

void Block::collect_params(std::vector<nn::Param*>& params) {
  input_norm_.collect_params(params);
  attention_.collect_params(params);
  mlp_norm_.collect_params(params);
  mlp_.collect_params(params);
}

}  // namespace metroplex::models
