// DeepseekV2ForCausalLM, arXiv 2405.04434, and DeepseekV3ForCausalLM, arXiv 2412.19437: latent attention; the first
// layers are dense, the others are MoE layers with shared experts. Version 2 weights experts by a softmax over all
// and ranks groups by their best expert. Version 3 uses sigmoid weights, selects by weight plus bias, and ranks
// groups by their two best experts. Version 3 may have additional multi-token prediction layers. Kimi K2, arXiv
// 2507.20534, is version 3 with another model_type.
#include "hf/decoder.h"

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
  add_biases(biases, biases, false, settings);
}

static Settings shared_settings(const ConfigReader& config) {
  Settings settings = decoder_settings_without_heads(config, Window::refused);
  add_attention(config, settings);
  config.ignore({"head_dim", "qk_head_dim"});  // follow from the others
  return settings;
}

static Settings settings_v2(ConfigReader& config) {
  Settings settings = shared_settings(config);
  config.require(!config.flag("mlp_bias", false), "mlp_bias", "false");
  set(settings, "rotary_interleaved", true);
  if (!add_shared_experts(config, {0, 64, 2, 1407, 2, 1.0}, settings)) return settings;
  set(settings, "moe_router_pre_softmax", true);
  const std::string scoring = config.text("scoring_func", "softmax"), method = config.text("topk_method", "greedy");
  config.require(scoring == "softmax", "scoring_func", "softmax");
  config.require(method == "greedy" || method == "group_limited_greedy", "topk_method",
                 "greedy or group_limited_greedy");
  if (method == "group_limited_greedy") add_group_routing(config, 1, 1, 1, settings);
  return settings;
}

static Settings settings_v3(ConfigReader& config) {
  config.add_defaults({{"max_position_embeddings", 4096}});
  Settings settings = shared_settings(config);
  set(settings, "rotary_interleaved", config.flag("rope_interleave", true));
  add_multi_token(config, 1, settings);
  if (add_shared_experts(config, {3, 256, 8, 2048, 1, 2.5}, settings)) add_sigmoid_routing(config, 8, 4, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

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
  add_shared_experts_config(m, json);
  return json;
}

static Json config_v2(const config::Model& m) {
  Json json = shared_config(m);
  json["topk_method"] = m.moe_router_num_groups > 0 ? "group_limited_greedy" : "greedy";
  json["norm_topk_prob"] = json["mlp_bias"] = false;
  return json;
}

static Json config_v3(const config::Model& m) {
  Json json = shared_config(m);
  json["norm_topk_prob"] = normalizes_topk(m);
  json["rope_interleave"] = m.rotary_interleaved;
  json["num_nextn_predict_layers"] = m.mtp_num_layers;
  return json;
}

}  // namespace deepseek

const Family kDeepseekV2{"deepseek_v2", "DeepseekV2ForCausalLM", deepseek::settings_v2, deepseek::tensors,
                         deepseek::config_v2};
const Family kDeepseekV3{.model_type = "deepseek_v3",
                         .architecture = "DeepseekV3ForCausalLM",
                         .settings = deepseek::settings_v3,
                         .tensors = deepseek::tensors,
                         .config = deepseek::config_v3,
                         .multi_token = true};
const Family kKimiK2{.model_type = "kimi_k2",
                     .architecture = "DeepseekV3ForCausalLM",
                     .settings = deepseek::settings_v3,
                     .tensors = deepseek::tensors,
                     .config = deepseek::config_v3,
                     .written_as = "deepseek_v3",
                     .multi_token = true};

}  // namespace metroplex::hf
