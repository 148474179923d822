// DeepseekV2ForCausalLM, arXiv 2405.04434, and DeepseekV3ForCausalLM, arXiv 2412.19437: latent attention; the first
// layers are dense, the others are MoE layers with shared experts. Version 2 weights experts by a softmax over all
// and ranks groups by their best expert. Version 3 uses sigmoid weights, selects by weight plus bias, and ranks
// groups by their two best experts. Version 3 may have additional multi-token prediction layers.
#include "hf/decoder.h"

#include <algorithm>
#include <cmath>

#include "config/experts.h"

namespace metroplex::hf {
namespace deepseek {

constexpr double kLatentEpsilon = 1e-6;  // of the latents' norms; rms_norm_eps does not apply to them

static void add_attention(const ConfigReader& config, Settings& settings) {
  const int64_t heads = config.integer("num_attention_heads");
  config.require(config.integer("num_key_value_heads", heads) == heads, "num_key_value_heads",
                 "the value of num_attention_heads");
  set(settings, "multi_latent_attention", true);
  set(settings, "qk_layernorm", true);
  set(settings, "q_lora_rank", config.integer_or_null("q_lora_rank", 1536));
  set(settings, "kv_lora_rank", config.integer("kv_lora_rank", 512));
  set(settings, "qk_head_dim", config.integer("qk_nope_head_dim", 128));
  set(settings, "qk_pos_emb_head_dim", config.integer("qk_rope_head_dim", 64));
  set(settings, "v_head_dim", config.integer("v_head_dim", 128));
  set(settings, "latent_layernorm_epsilon", kLatentEpsilon);
  const bool biases = config.flag("attention_bias", false);
  set(settings, "add_qkv_bias", biases);
  set(settings, "add_attention_output_bias", biases);
}

struct Defaults {
  int64_t first_dense, experts, topk, width, shared;
  double scaling;
};

// Returns false if all layers are dense.
static bool add_experts(const ConfigReader& config, const Defaults& defaults, Settings& settings) {
  const int64_t layers = num_layers(config);
  const int64_t dense = config.integer("first_k_dense_replace", defaults.first_dense);
  const int64_t experts = config.integer_or_null("n_routed_experts", defaults.experts);
  config.require(config.integer("moe_layer_freq", 1) == 1, "moe_layer_freq", "1");
  if (experts == 0 || dense >= layers) return false;
  std::vector<bool> pattern;
  for (int64_t i = 0; i < layers; ++i) pattern.push_back(i >= dense);
  const int64_t width = config.integer("moe_intermediate_size", defaults.width);
  set(settings, "num_moe_experts", experts);
  set(settings, "moe_layer_freq", layer_pattern(pattern));
  set(settings, "moe_router_topk", config.integer("num_experts_per_tok", defaults.topk));
  set(settings, "moe_ffn_hidden_size", width);
  set(settings, "moe_shared_expert_intermediate_size",
      width * config.integer_or_null("n_shared_experts", defaults.shared));
  set(settings, "moe_router_topk_scaling_factor", config.number("routed_scaling_factor", defaults.scaling));
  return true;
}

static void add_groups(int64_t groups, int64_t chosen, int64_t best, Settings& settings) {
  if (groups <= 1 || chosen >= groups) return;
  set(settings, "moe_router_num_groups", groups);
  set(settings, "moe_router_group_topk", chosen);
  set(settings, "moe_router_group_score_topk", best);
}

static Settings shared_settings(const ConfigReader& config) {
  Settings settings = decoder_settings_without_heads(config, Window::refused);
  set(settings, "family", "gpt");
  set(settings, "add_bias_linear", false);
  add_attention(config, settings);
  return settings;
}

static Settings settings_v2(const Json& json) {
  const ConfigReader config(json);
  Settings settings = shared_settings(config);
  config.require(!config.flag("mlp_bias", false), "mlp_bias", "false");
  set(settings, "rotary_interleaved", true);
  if (!add_experts(config, {0, 64, 2, 1407, 2, 1.0}, settings)) return settings;
  set(settings, "moe_router_pre_softmax", true);
  const std::string scoring = config.text("scoring_func", "softmax"), method = config.text("topk_method", "greedy");
  config.require(scoring == "softmax", "scoring_func", "softmax");
  config.require(method == "greedy" || method == "group_limited_greedy", "topk_method",
                 "greedy or group_limited_greedy");
  if (method == "group_limited_greedy")
    add_groups(config.integer("n_group", 1), config.integer("topk_group", 1), 1, settings);
  return settings;
}

static Settings settings_v3(const Json& given) {
  const Json json = add_defaults(given, {{"max_position_embeddings", 4096}});
  const ConfigReader config(json);
  Settings settings = shared_settings(config);
  set(settings, "rotary_interleaved", config.flag("rope_interleave", true));
  const int64_t ahead = config.integer("num_nextn_predict_layers", 1);
  config.require(ahead >= 0 && ahead <= kMaxMultiToken, "num_nextn_predict_layers", "0 to 64");
  set(settings, "mtp_num_layers", ahead);
  if (!add_experts(config, {3, 256, 8, 2048, 1, 2.5}, settings)) return settings;
  const std::string scoring = config.text("scoring_func", "sigmoid"), method = config.text("topk_method", "noaux_tc");
  config.require(scoring == "sigmoid", "scoring_func", "sigmoid");
  config.require(method == "noaux_tc", "topk_method", "noaux_tc");
  set(settings, "moe_router_score_function", "sigmoid");
  set(settings, "moe_router_enable_expert_bias", true);
  set(settings, "moe_router_topk_normalization", config.flag("norm_topk_prob", true) ? "always" : "never");
  add_groups(config.integer("n_group", 8), config.integer("topk_group", 4), 2, settings);
  return settings;
}

// Returns the number of leading dense layers.
static int64_t dense_layers(const config::Model& m) {
  if (!m.has_experts()) return m.num_layers;
  const std::vector<bool> experts = config::moe_layers(m);
  return std::find(experts.begin(), experts.end(), true) - experts.begin();
}

static bool holds(const config::Model& m, int64_t best_of_group) {
  if (!has_decoder_layers(m) || m.has_window() || !m.multi_latent_attention || !m.qk_layernorm || m.add_bias_linear ||
      m.add_mlp_bias || m.add_qkv_bias != m.add_attention_output_bias)
    return false;
  // config.json has a softmax scale only with YaRN.
  if (!m.yarn() && m.mscale_all_dim != 0) return false;
  const double epsilon = m.latent_layernorm_epsilon > 0 ? m.latent_layernorm_epsilon : m.layernorm_epsilon;
  if (epsilon != kLatentEpsilon) return false;
  if (!m.has_experts()) return true;
  const std::vector<bool> experts = config::moe_layers(m);
  const int64_t ranks_by = m.moe_router_group_score_topk > 0 || m.moe_router_group_topk == 0
                               ? m.moe_router_group_score_topk
                               : m.moe_router_topk / m.moe_router_group_topk;
  return std::is_sorted(experts.begin(), experts.end()) && !m.moe_shared_expert_gate &&
         m.moe_shared_expert_intermediate_size % config::expert_ffn_width(m) == 0 &&
         (m.moe_router_num_groups == 0 || ranks_by == best_of_group);
}

static bool holds_v2(const config::Model& m) {
  return holds(m, 1) && m.rotary_interleaved &&
         (!m.has_experts() || (m.moe_router_score_function == config::ScoreFunction::softmax &&
                               m.moe_router_pre_softmax && !m.moe_router_enable_expert_bias));
}

static bool holds_v3(const config::Model& m) {
  return holds(m, 2) && (!m.has_experts() || (m.moe_router_score_function == config::ScoreFunction::sigmoid &&
                                              m.moe_router_enable_expert_bias));
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  const bool biases = m.add_qkv_bias;
  return decoder_tensors(m,
                         {.qkv_bias = biases,
                          .output_bias = biases,
                          .expert_bias = m.moe_router_enable_expert_bias ? "mlp.gate.e_score_correction_bias" : ""});
}

static Json shared_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["num_key_value_heads"] = m.num_attention_heads;
  json["q_lora_rank"] = m.q_lora_rank > 0 ? Json(m.q_lora_rank) : Json();
  json["kv_lora_rank"] = m.kv_lora_rank;
  json["qk_nope_head_dim"] = m.qk_head_dim;
  json["qk_rope_head_dim"] = m.qk_pos_emb_head_dim;
  json["qk_head_dim"] = m.qk_head_dim + m.qk_pos_emb_head_dim;
  json["v_head_dim"] = m.v_head_dim;
  json["attention_bias"] = m.add_qkv_bias;
  json["first_k_dense_replace"] = dense_layers(m);
  if (!m.has_experts()) return json;
  const int64_t width = config::expert_ffn_width(m);
  json["n_routed_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["moe_intermediate_size"] = width;
  json["n_shared_experts"] = m.moe_shared_expert_intermediate_size / width;
  json["routed_scaling_factor"] = m.moe_router_topk_scaling_factor > 0 ? m.moe_router_topk_scaling_factor : 1.0;
  json["n_group"] = std::max<int64_t>(1, m.moe_router_num_groups);
  json["topk_group"] = std::max<int64_t>(1, m.moe_router_group_topk);
  return json;
}

static Json config_v2(const config::Model& m) {
  Json json = shared_config(m);
  json["topk_method"] = m.moe_router_num_groups > 0 ? "group_limited_greedy" : "greedy";
  json["norm_topk_prob"] = json["mlp_bias"] = false;
  return json;
}

static Json config_v3(const config::Model& m) {
  using config::TopkNormalization;
  Json json = shared_config(m);
  const TopkNormalization declared = m.moe_router_topk_normalization;
  json["norm_topk_prob"] =
      declared == TopkNormalization::always || (declared == TopkNormalization::automatic && m.moe_router_topk > 1);
  json["rope_interleave"] = m.rotary_interleaved;
  json["num_nextn_predict_layers"] = m.mtp_num_layers;
  return json;
}

}  // namespace deepseek

const Family kDeepseekV2{"deepseek_v2",     "DeepseekV2ForCausalLM", deepseek::settings_v2,
                         deepseek::tensors, deepseek::holds_v2,      deepseek::config_v2};
const Family kDeepseekV3{"deepseek_v3",
                         "DeepseekV3ForCausalLM",
                         deepseek::settings_v3,
                         deepseek::tensors,
                         deepseek::holds_v3,
                         deepseek::config_v3,
                         true};

}  // namespace metroplex::hf
