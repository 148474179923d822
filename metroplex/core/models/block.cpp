#include "models/block.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "config/layer_parts.h"
#include "moe/experts_layer.h"
#include "nn/value.h"

namespace metroplex::models {

nn::NormSpec norm_spec(const std::string& name, const config::Model& model, const nn::LayerContext& context) {
  nn::NormSpec spec{name,
                    model.hidden_size,
                    model.normalization == config::Normalization::RMSNorm,
                    model.layernorm_epsilon,
                    context.sp_axes,
                    topology::Role::norm,
                    model.apply_layernorm_1p};
  spec.add_bias = model.add_norm_bias;
  return spec;
}

static std::optional<nn::Norm> make_norm(bool exists, const std::string& name, const config::Model& model,
                                         const nn::LayerContext& context) {
  if (!exists) return std::nullopt;
  return std::optional<nn::Norm>(std::in_place, norm_spec(name, model, context), context);
}

static std::shared_ptr<nn::RopeTable> make_table(const nn::RopeSpec& spec, const ModelContext& context) {
  const auto table = std::make_shared<nn::RopeTable>(spec, context.target);
  table->reserve(context.positions > 0 ? context.positions : context.model.max_position_embeddings, context.dtype);
  return table;
}

std::shared_ptr<nn::RopeTable> make_rope(const ModelContext& context, bool local) {
  const config::Model& model = context.model;
  if (model.position_embedding_type != config::PositionEmbedding::rope) return nullptr;
  const int64_t width = model.multi_latent_attention ? model.qk_pos_emb_head_dim : nn::head_counts(model, 1).head_dim;
  nn::RopeSpec rope;
  rope.dims = static_cast<int64_t>(static_cast<double>(width) * model.rotary_percent);
  MPX_CHECK(rope.dims > 0 && rope.dims % 2 == 0, "models", "model.rotary_percent = ", model.rotary_percent,
            " of head size ", width, " gives ", rope.dims, " rotary dimensions; they must be even and positive");
  rope.base = local ? model.rotary_base_local : model.rotary_base;
  rope.interleaved = model.rotary_interleaved;
  if (!local) rope.interpolation = model.rotary_seq_len_interpolation_factor;
  if (model.use_rope_scaling && !local) {
    rope.scaling = {model.rope_scaling_factor, model.rope_scaling_low_freq_factor,
                    model.rope_scaling_high_freq_factor, model.rope_scaling_original_max_position_embeddings};
  }
  if (model.yarn() && !local) {
    const double factor = model.rotary_scaling_factor;
    rope.yarn = {factor, model.beta_fast, model.beta_slow, model.original_max_position_embeddings,
                 model.yarn_correction_range_round_to_int};
    rope.amplitude = model.yarn_attention_factor > 0
                         ? model.yarn_attention_factor
                         : nn::yarn_mscale(factor, model.mscale) / nn::yarn_mscale(factor, model.mscale_all_dim);
  }
  if (model.yarn() && !local && model.query_scaling_floor == 0) {
    rope.query_beta = model.query_scaling_beta;
    rope.query_positions = model.original_max_position_embeddings;
  }
  if (model.longrope() && !local) {
    const double factor = model.rotary_scaling_factor;
    const auto positions = static_cast<double>(model.original_max_position_embeddings);
    rope.factors = {config::longrope_factors(model.longrope_short_factor),
                    config::longrope_factors(model.longrope_long_factor), model.original_max_position_embeddings};
    rope.amplitude = model.yarn_attention_factor > 0 ? model.yarn_attention_factor
                                                     : std::sqrt(1 + std::log(factor) / std::log(positions));
  }
  return make_table(rope, context);
}

std::shared_ptr<nn::RopeTable> make_query_scaling(const ModelContext& context) {
  const config::Model& model = context.model;
  if (model.query_scaling_floor == 0) return nullptr;
  nn::RopeSpec scaling;
  scaling.dims = nn::head_counts(model, 1).head_dim;
  scaling.query_beta = model.query_scaling_beta;
  scaling.query_positions = model.query_scaling_floor, scaling.query_offset = 1;
  scaling.rotates = false;
  return make_table(scaling, context);
}

// The input of the sublayer in `type`. Without a norm, an fp32 residual is rounded for it.
static nn::ResidualAndNorm sublayer_input(const nn::Values& in, std::optional<nn::Norm>& norm, at::ScalarType type,
                                          const nn::SavePolicy& saving, const nn::Microbatch& batch) {
  nn::ResidualAndNorm x = nn::residual_and_norm(in.at(nn::kHiddenStates), norm ? &*norm : nullptr, saving, batch);
  if (!norm) x.normed.x = x.normed.x.to(type);
  return x;
}

AttentionSegment::AttentionSegment(const LayerSpec& spec, const config::Model& model, const nn::LayerContext& context,
                                   std::shared_ptr<nn::RopeTable> rope)
    : mamba_(config::parts_of_layer(model, spec.layer).mamba),
      name_(spec.name + (mamba_ ? ".mixer" : ".self_attention")),
      sp_(context.sp),
      has_external_query_(spec.has_external_query),
      type_(context.dtype),
      saving_(context.saving),
      dropout_{context.seed, spec.layer, nn::RandomSite::attention_output, model.hidden_dropout, context.target},
      norm_(make_norm(model.pre_norm, spec.name + (mamba_ ? ".norm" : ".input_layernorm"), model, context)),
      attention_(nn::make_attention({name_, spec.layer, spec.has_external_query}, model, context, std::move(rope))),
      post_norm_(make_norm(model.sandwich_norm, spec.name + ".post_self_attn_layernorm", model, context)),
      residual_(model, config::mixer_residual(model, config::parts_of_layer(model, spec.layer))) {}

nn::Values AttentionSegment::forward(const nn::Values& in, nn::SegmentContext& context) {
  const nn::ResidualAndNorm x = residual_.connect(sublayer_input(in, norm_, type_, saving_, context.batch));
  const at::Tensor query = has_external_query_ ? in.tensor(kQueries) : at::Tensor();
  at::Tensor attention_out = attention_->forward(x.normed, context.batch, query);
  if (post_norm_) attention_out = nn::normalize(*post_norm_, attention_out, saving_).x;
  const nn::SequenceOffset offset = nn::sequence_offset(x.h, sp_);
  return {nn::kHiddenStates,
          nn::PendingSum{residual_.scale(attention_out), x.h, {dropout_, attention_->output_bias(), offset}}};
}

void AttentionSegment::collect_params(std::vector<nn::Param*>& params) {
  if (norm_) norm_->collect_params(params);
  attention_->collect_params(params);
  if (post_norm_) post_norm_->collect_params(params);
}

FeedForwardSegment::FeedForwardSegment(const LayerSpec& spec, const config::Model& model,
                                       const nn::LayerContext& context)
    : name_(spec.name + ".mlp"),
      sp_(context.sp),
      type_(context.dtype),
      saving_(context.saving),
      dropout_{context.seed, spec.layer, nn::RandomSite::mlp_output, model.hidden_dropout, context.target},
      norm_(make_norm(model.pre_norm, spec.name + ".pre_mlp_layernorm", model, context)),
      mlp_(name_, model, context),
      post_norm_(make_norm(model.sandwich_norm, spec.name + ".post_mlp_layernorm", model, context)),
      residual_(model, config::mlp_residual(model)) {}

nn::Values FeedForwardSegment::forward(const nn::Values& in, nn::SegmentContext& context) {
  const nn::ResidualAndNorm x = residual_.connect(sublayer_input(in, norm_, type_, saving_, context.batch));
  at::Tensor out = mlp_.forward(x.normed, context.batch);
  if (post_norm_) out = nn::normalize(*post_norm_, out, saving_).x;
  const nn::SequenceOffset offset = nn::sequence_offset(x.h, sp_);
  return {nn::kHiddenStates, nn::PendingSum{residual_.scale(out), x.h, {dropout_, mlp_.output_bias(), offset}}};
}

void FeedForwardSegment::collect_params(std::vector<nn::Param*>& params) {
  if (norm_) norm_->collect_params(params);
  mlp_.collect_params(params);
  if (post_norm_) post_norm_->collect_params(params);
}

void add_layer_segments(nn::Block& block, const LayerSpec& spec, const ModelContext& of_model,
                        std::shared_ptr<nn::RopeTable> rope) {
  ModelContext context = of_model;
  context.precision = of_model.precision.of_layer(spec.layer, of_model.num_layers);
  const config::Model& model = context.model;
  if (model.parallel_attention_mlp) {
    block.segments.push_back(make_parallel_segment(spec, context, std::move(rope)));
    return;
  }
  const config::LayerParts parts = config::parts_of_layer(model, spec.layer);
  if (parts.has_mixer())
    block.segments.push_back(std::make_unique<AttentionSegment>(spec, model, context, std::move(rope)));
  if (parts.experts) {
    const moe::ExpertsLayerSpec experts{spec.name + ".mlp", spec.layer,
                                        norm_spec(spec.name + ".pre_mlp_layernorm", model, context)};
    moe::add_expert_segments(block, std::make_shared<moe::ExpertsLayer>(experts, model, context, context.experts),
                             model, context);
  }
  if (parts.mlp) block.segments.push_back(std::make_unique<FeedForwardSegment>(spec, model, context));
}

}  // namespace metroplex::models
