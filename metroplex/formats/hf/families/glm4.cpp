// Glm4ForCausalLM and Glm4MoeForCausalLM, arXiv 2508.06471: a part of each head is rotated, and only queries, keys
// and values have biases. The dense family rotates neighboring channels and has norms before and after attention and
// MLP. The other has the routing of deepseek_v3 and may have norms of queries and keys.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace glm4 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 2},
                       {"head_dim", 128},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1.5625e-7},
                       {"partial_rotary_factor", 0.5}});
  Settings settings = decoder_settings(config, Window::refused, PartialRope::read);
  add_biases(config.flag("attention_bias", true), false, false, settings);
  set(settings, "rotary_interleaved", true);
  set(settings, "sandwich_norm", true);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.attention_norm = "post_self_attn_layernorm",
                             .mlp_norm = "post_mlp_layernorm",
                             .mlp_gate = "",
                             .mlp_up = "gate_up_proj"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.add_qkv_bias;
  json["rope_parameters"]["partial_rotary_factor"] = m.rotary_percent;
  return json;
}

static Settings moe_settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"partial_rotary_factor", 0.5}});
  Settings settings = decoder_settings(config, Window::refused, PartialRope::read);
  add_biases(config.flag("attention_bias", false), false, false, settings);
  set(settings, "qk_layernorm", config.flag("use_qk_norm", false));
  add_multi_token(config, config.integer("num_mtp_layers", 1), settings);
  if (add_shared_experts(config, {1, config.integer("num_local_experts", 128), 8, 1408, 1, 1.0}, settings))
    add_sigmoid_routing(config, 1, 1, settings);
  return settings;
}

static std::vector<MappedTensor> moe_tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json moe_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.add_qkv_bias;
  json["rope_parameters"]["partial_rotary_factor"] = m.rotary_percent;
  json["use_qk_norm"] = m.qk_layernorm;
  add_shared_experts_config(m, json);
  json["norm_topk_prob"] = normalizes_topk(m);
  json["num_nextn_predict_layers"] = m.mtp_num_layers;
  return json;
}

}  // namespace glm4

const Family kGlm4{"glm4", "Glm4ForCausalLM", glm4::settings, glm4::tensors, glm4::make_config};
const Family kGlm4Moe{.model_type = "glm4_moe",
                      .architecture = "Glm4MoeForCausalLM",
                      .settings = glm4::moe_settings,
                      .tensors = glm4::moe_tensors,
                      .config = glm4::moe_config,
                      .multi_token = true};

}  // namespace metroplex::hf
