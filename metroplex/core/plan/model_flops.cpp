#include "plan/model_flops.h"

#include <algorithm>

#include "base/error.h"
#include "config/derived.h"
#include "config/experts.h"

namespace metroplex::plan {

using config::LayerParts;

ModelShape model_shape(const config::Config& config, int64_t padded_vocab_size) {
  const config::Model& model = config.model;
  MPX_CHECK(model.num_attention_heads > 0, "plan", "model.num_attention_heads = ", model.num_attention_heads,
            ": must be positive");
  const auto or_else = [](int64_t value, int64_t derived) { return value > 0 ? value : derived; };
  ModelShape shape;
  shape.layers = config::layer_parts(model);
  for (int64_t i = 0; i < model.mtp_num_layers; ++i) shape.layers.push_back(shape.layers.back());
  shape.hidden_size = model.hidden_size;
  shape.num_attention_heads = model.num_attention_heads;
  shape.num_query_groups = or_else(model.num_query_groups, model.num_attention_heads);
  if (!model.multi_latent_attention)
    shape.kv_channels = or_else(model.kv_channels, model.hidden_size / model.num_attention_heads);
  shape.ffn_hidden_size = config::ffn_width(model);
  shape.padded_vocab_size = padded_vocab_size;
  shape.seq_length = config.train.seq_length;
  shape.gated_linear_unit = model.gated_linear_unit;
  shape.linear_bias = model.add_bias_linear;
  shape.attention_output_gate = model.attention_output_gate;
  shape.mtp_num_layers = model.mtp_num_layers;
  shape.num_outputs = 1 + model.mtp_num_layers;
  if (model.has_delta_net()) {
    shape.delta_net =
        DeltaNetShape{model.linear_key_head_dim, model.linear_value_head_dim, model.linear_num_key_heads,
                      model.linear_num_value_heads, model.linear_conv_kernel_dim};
  }
  if (model.multi_latent_attention) {
    shape.latent = LatentShape{model.q_lora_rank, model.kv_lora_rank, model.qk_head_dim, model.qk_pos_emb_head_dim,
                               model.v_head_dim};
  }
  if (model.has_experts()) {
    shape.experts = ExpertShape{.num_experts = model.num_moe_experts,
                                .router_topk = model.moe_router_topk,
                                .ffn_hidden_size = config::expert_ffn_width(model),
                                .shared_ffn_hidden_size = model.moe_shared_expert_intermediate_size,
                                .latent_size = model.moe_latent_size};
  }
  if (!model.hybrid_layer_pattern.empty()) {
    shape.mamba =
        MambaShape{config::mamba_heads(model), model.mamba_head_dim, model.mamba_num_groups, model.mamba_state_dim};
  }
  return shape;
}

int64_t ModelShape::count(bool LayerParts::*part) const {
  return std::count_if(layers.begin(), layers.end(), [&](const LayerParts& layer) { return layer.*part; });
}

static double as_double(int64_t value) { return static_cast<double>(value); }

// Returns the multiply-adds of one attention's forward over `tokens` tokens; `squares` is the sum of length^2.
static double attention_products(const ModelShape& shape, double tokens, double squares) {
  const double hidden = as_double(shape.hidden_size), heads = as_double(shape.num_attention_heads);
  if (!shape.latent) {
    const double query = as_double(shape.kv_channels) * heads;
    const double key = as_double(shape.kv_channels * shape.num_query_groups);
    return tokens * (hidden * (query * (shape.attention_output_gate ? 3 : 2) + 2 * key)) + squares * query;
  }
  // Like Megatron: the norm of a latent counts as one multiply-add per element.
  const LatentShape& latent = *shape.latent;
  const double qk = as_double(latent.qk_head_dim + latent.qk_pos_emb_head_dim), v = as_double(latent.v_head_dim);
  const double queries =
      latent.q_lora_rank > 0 ? as_double(latent.q_lora_rank) * (hidden + heads * qk + 1) : hidden * heads * qk;
  const double keys = as_double(latent.kv_lora_rank) * (hidden + heads * (as_double(latent.qk_head_dim) + v) + 1);
  const double rest = hidden * as_double(latent.qk_pos_emb_head_dim) + heads * v * hidden;
  return tokens * (queries + keys + rest) + squares * heads * (qk + v) / 2;
}

// Like Megatron: four products of [value_head_dim, value_head_dim] per token and value head.
static double delta_net_products(const ModelShape& shape, const DeltaNetShape& net, double tokens) {
  const double hidden = as_double(shape.hidden_size), heads = as_double(net.num_value_heads),
               keys = as_double(net.key_head_dim * net.num_key_heads),
               values = as_double(net.value_head_dim * net.num_value_heads);
  return tokens * (hidden * (2 * keys + 3 * values + 2 * heads) +
                   as_double(net.conv_kernel_dim) * (2 * keys + values) + 4 * values * as_double(net.value_head_dim));
}

// The state of a head and its result are one product of [kv_channels, kv_channels] per token each.
static double lightning_products(const ModelShape& shape) {
  const double hidden = as_double(shape.hidden_size), channels = as_double(shape.kv_channels),
               inner = as_double(shape.num_attention_heads) * channels;
  return 5 * hidden * inner + 2 * inner * channels;
}

// Like Megatron: seven operations per state value. Megatron assumes an inner width of 2 hidden_size.
static double mamba_products(const ModelShape& shape, const MambaShape& sizes) {
  const double hidden = as_double(shape.hidden_size), inner = as_double(sizes.heads * sizes.head_dim);
  const double projected = 2 * inner + as_double(2 * sizes.num_groups * sizes.state_dim + sizes.heads);
  return hidden * projected + 3.5 * inner * as_double(sizes.state_dim) + inner * hidden;
}

double step_flops(const ModelShape& shape, const StepTokens& step) {
  const double hidden = as_double(shape.hidden_size), length = as_double(shape.seq_length),
               batch = as_double(step.batch_size);
  const double tokens = step.num_tokens.value_or(batch * length);
  const double squares = step.squared_length_sum.value_or(batch * length * length);
  const auto feed_forward = [&](double in, int64_t width) {
    return in * as_double(width) * (shape.gated_linear_unit ? 3 : 2);
  };
  const double mtp = as_double(shape.mtp_num_layers);
  const auto layers = [&](bool LayerParts::*part) { return as_double(shape.count(part)); };
  double sum = layers(&LayerParts::attention) * attention_products(shape, tokens, squares);
  sum += layers(&LayerParts::mlp) * tokens * feed_forward(hidden, shape.ffn_hidden_size);
  if (shape.delta_net) sum += layers(&LayerParts::delta_net) * delta_net_products(shape, *shape.delta_net, tokens);
  sum += layers(&LayerParts::lightning) * tokens * lightning_products(shape);
  if (shape.mamba) sum += layers(&LayerParts::mamba) * tokens * mamba_products(shape, *shape.mamba);
  if (shape.experts) {
    const ExpertShape& experts = *shape.experts;
    const double latent = as_double(experts.latent_size), routed = latent > 0 ? latent : hidden;
    sum += layers(&LayerParts::experts) * tokens *
           (feed_forward(routed, experts.ffn_hidden_size * experts.router_topk) +
            feed_forward(hidden, experts.shared_ffn_hidden_size) + 2 * hidden * latent);
  }
  // Like Megatron: each of the three norms counts as one multiply-add per element.
  sum += tokens * mtp * (3 * hidden + 2 * hidden * hidden);
  sum += tokens * hidden * as_double(shape.padded_vocab_size) * as_double(shape.num_outputs);
  constexpr double kForwardAndBackward = 3, kMultiplyAdd = 2;
  return kForwardAndBackward * kMultiplyAdd * sum;
}

ModelShape with_all_experts(ModelShape shape) {
  if (shape.experts) shape.experts->router_topk = shape.experts->num_experts;
  return shape;
}

int64_t idle_parameters(const ModelShape& shape) {
  if (!shape.experts) return 0;
  const ExpertShape& expert = *shape.experts;
  const int64_t first = expert.ffn_hidden_size * (shape.gated_linear_unit ? 2 : 1),
                width = expert.latent_size > 0 ? expert.latent_size : shape.hidden_size;
  const int64_t biases = shape.linear_bias ? first + width : 0;
  return shape.count(&LayerParts::experts) * (expert.num_experts - expert.router_topk) *
         (width * (first + expert.ffn_hidden_size) + biases);
}

}  // namespace metroplex::plan
