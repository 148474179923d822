#include "config/model_function.h"

#include <algorithm>
#include <cmath>

#include "config/derived.h"
#include "config/experts.h"
#include "config/fields.h"
#include "config/layer_parts.h"
#include "config/neutral_keys.h"

namespace metroplex::config {
namespace {

// Each of these functions resolves derived values, and resets keys without effect to their defaults.

void resolve_attention(Model& m, const Model& defaults) {
  if (m.multi_latent_attention) {
    m.num_query_groups = m.kv_channels = 0;
    if (m.latent_layernorm_epsilon == 0) m.latent_layernorm_epsilon = m.layernorm_epsilon;
  } else {
    if (m.num_query_groups == 0) m.num_query_groups = m.num_attention_heads;
    if (m.kv_channels == 0) m.kv_channels = m.hidden_size / m.num_attention_heads;
    if (m.softmax_scale == 0) m.softmax_scale = 1 / std::sqrt(static_cast<double>(m.kv_channels));
    m.q_lora_rank = defaults.q_lora_rank, m.kv_lora_rank = defaults.kv_lora_rank;
    m.qk_head_dim = defaults.qk_head_dim, m.qk_pos_emb_head_dim = defaults.qk_pos_emb_head_dim;
    m.v_head_dim = defaults.v_head_dim, m.latent_layernorm_epsilon = 0;
  }
  if (m.has_linear_attention()) m.linear_attention_freq = layer_pattern(linear_attention_layers(m));
  const std::vector<bool> windows = window_layers(m);
  const auto count = std::count(windows.begin(), windows.end(), true);
  m.window_attn_skip_freq = count == 0 || count == m.num_layers ? "" : layer_pattern(windows);
  if (count == 0) m.window_size = -1, m.attention_chunk_size = 0, m.rotary_base_local = 0;
}

void resolve_longrope(Model& m) {
  for (std::string* text : {&m.longrope_short_factor, &m.longrope_long_factor}) {
    const std::vector<double> factors = longrope_factors(*text);
    text->clear();
    for (const double factor : factors) *text += (text->empty() ? "" : ",") + number_text(factor);
  }
}

void resolve_positions(Model& m, const Model& defaults) {
  if (m.position_embedding_type != PositionEmbedding::learned_absolute) m.max_position_embeddings = 0;
  const bool yarn = m.yarn() && (m.rotary_scaling_factor != 1 || m.yarn_attention_factor > 0);
  if (!m.longrope()) m.rope_type = yarn ? RopeType::yarn : RopeType::rope;
  if (m.longrope()) resolve_longrope(m);
  if (!yarn && !m.longrope()) {
    // Latent attention scales its scores with any rope_type.
    if (!m.multi_latent_attention) m.mscale_all_dim = 0;
    if (m.mscale_all_dim == 0) m.rotary_scaling_factor = 1;
    m.beta_fast = defaults.beta_fast, m.beta_slow = defaults.beta_slow, m.mscale = 1, m.yarn_attention_factor = 0;
    m.original_max_position_embeddings = defaults.original_max_position_embeddings;
    m.yarn_correction_range_round_to_int = true;
  }
  if (!m.use_rope_scaling) {
    m.rope_scaling_factor = defaults.rope_scaling_factor;
    m.rope_scaling_low_freq_factor = defaults.rope_scaling_low_freq_factor;
    m.rope_scaling_high_freq_factor = defaults.rope_scaling_high_freq_factor;
    m.rope_scaling_original_max_position_embeddings = defaults.rope_scaling_original_max_position_embeddings;
  }
  const bool scaled = yarn || m.longrope() || m.use_rope_scaling || m.rotary_seq_len_interpolation_factor != 1;
  if (m.has_local_attention() && m.rotary_base_local == 0 && !scaled) m.rotary_base_local = m.rotary_base;
  std::vector<bool> unrotated = rope_layers(m);
  unrotated.flip();
  const auto count = std::count(unrotated.begin(), unrotated.end(), true);
  m.no_rope_freq = count == 0 ? "" : layer_pattern(unrotated);
  if (m.position_embedding_type == PositionEmbedding::rope) return;
  m.rotary_base_local = 0;
  m.rotary_base = defaults.rotary_base, m.rotary_percent = 1, m.rotary_interleaved = false;
}

void resolve_routing(Model& m) {
  const bool softmax = m.moe_router_score_function == ScoreFunction::softmax;
  m.moe_layer_freq = layer_pattern(moe_layers(m));
  if (softmax) m.moe_router_topk_normalization = TopkNormalization::automatic;
  else m.moe_router_pre_softmax = false;
  if (!softmax && m.moe_router_topk_normalization == TopkNormalization::automatic)
    m.moe_router_topk_normalization = m.moe_router_topk > 1 ? TopkNormalization::always : TopkNormalization::never;
  if (m.moe_router_topk_scaling_factor == 0) m.moe_router_topk_scaling_factor = 1;
  if (m.moe_router_num_groups <= 1 || m.moe_router_group_topk >= m.moe_router_num_groups)
    m.moe_router_num_groups = m.moe_router_group_topk = m.moe_router_group_score_topk = 0;
  else if (m.moe_router_group_score_topk == 0)
    m.moe_router_group_score_topk = m.moe_router_topk / std::max<int64_t>(1, m.moe_router_group_topk);
  m.moe_router_load_balancing_type = sinkhorn(m) ? "sinkhorn" : "none";
  if (m.moe_shared_expert_intermediate_size == 0) m.moe_shared_expert_gate = false;
}

// A key of linear attention or MLPs that is 0 has the general value.
void resolve_residual(Model& m, bool linear, bool feeds) {
  const bool others = any_layer_has(m, &LayerParts::attention) || any_layer_has(m, &LayerParts::mamba);
  const auto resolve = [&](double& general, double& of_linear, double& of_mlp) {
    of_linear = !linear ? 0 : of_linear > 0 ? of_linear : general;
    of_mlp = !feeds ? 0 : of_mlp > 0 ? of_mlp : general;
    if (!others) general = 1;
  };
  resolve(m.residual_multiplier, m.residual_multiplier_linear, m.residual_multiplier_mlp);
  resolve(m.residual_stream_multiplier, m.residual_stream_multiplier_linear, m.residual_stream_multiplier_mlp);
}

// Resets the keys for which `belongs` is true to their defaults.
template <class Belongs>
Model reset_keys(const Model& m, const Belongs& belongs) {
  Config config, unset;
  config.model = m;
  const std::vector<Field> ours = fields(config), defaults = fields(unset);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].section == "model" && belongs(ours[i].name)) copy_value(ours[i], defaults[i]);
  }
  return config.model;
}

Model resolve_function(Model m) {
  const Model defaults;
  m.family = "gpt";
  m.ffn_hidden_size = ffn_width(m);
  if (m.normalization == Normalization::RMSNorm) m.add_norm_bias = true;
  m.add_qkv_bias = m.add_qkv_bias || m.add_bias_linear;
  m.add_attention_output_bias = m.output_bias(), m.add_mlp_bias = m.mlp_bias();
  if (!m.gated_linear_unit) m.activation_func_clamp_value = m.glu_linear_offset = 0;
  resolve_attention(m, defaults);
  resolve_positions(m, defaults);
  const bool dense = any_layer_has(m, &LayerParts::mlp), experts = any_layer_has(m, &LayerParts::experts);
  if (experts) m.moe_ffn_hidden_size = expert_ffn_width(m);  // by default ffn_hidden_size
  if (!dense) m.ffn_hidden_size = 0;
  if (!dense && m.moe_shared_expert_intermediate_size == 0 && m.moe_latent_size == 0) m.add_mlp_bias = false;
  if (any_layer_has(m, &LayerParts::mamba)) m.mamba_num_heads = mamba_heads(m);
  else m = reset_keys(m, [](const std::string& name) { return name.starts_with("mamba_"); });
  const bool lightning = any_layer_has(m, &LayerParts::lightning);
  resolve_residual(m, lightning || any_layer_has(m, &LayerParts::delta_net), dense || experts);
  if (!any_layer_has(m, &LayerParts::attention)) {
    m.num_query_groups = 1, m.softmax_scale = 0, m.add_qkv_bias = m.add_attention_output_bias = false;
    if (!lightning) m.num_attention_heads = m.kv_channels = 1;
  }
  if (experts) {
    resolve_routing(m);
    return m;
  }
  m.add_bias_linear = false;  // a bias of experts
  return reset_keys(m, [](const std::string& name) { return name.starts_with("moe_") || name == "num_moe_experts"; });
}

bool is_equal(const Field& one, const Field& two) {
  if (!std::holds_alternative<double*>(one.member)) return to_yaml(one) == to_yaml(two);
  // Another program may store another function of a value, such as 1 / scale^2; each step rounds by at most 2^-53.
  const double a = *std::get<double*>(one.member), b = *std::get<double*>(two.member);
  return std::abs(a - b) <= 0x1p-50 * std::max(std::abs(a), std::abs(b));
}

}  // namespace

std::string layer_pattern(const std::vector<bool>& layers) {
  std::string pattern;
  for (const bool layer : layers) pattern += (pattern.empty() ? "[" : ",") + std::string(layer ? "1" : "0");
  return pattern + "]";
}

std::vector<Difference> differing_keys(const Model& here, const Model& there) {
  Config one, two;
  one.model = resolve_function(here);
  two.model = resolve_function(there);
  const std::vector<Field> left = fields(one), right = fields(two);
  std::vector<Difference> out;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].section == "model" && !is_neutral_key(left[i].name) && !is_equal(left[i], right[i]))
      out.push_back({left[i].key(), to_text(left[i]), to_text(right[i])});
  }
  return out;
}

}  // namespace metroplex::config
