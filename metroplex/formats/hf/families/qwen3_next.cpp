// Qwen3NextForCausalLM and the text models of Qwen3.5, Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM: gated delta nets
// (arXiv 2412.06464) in most layers, and attention with an output gate, norms of queries and keys and partial
// rotation in the others. Norms multiply by 1 + weight, except inside a gated delta net. Qwen3-Next and Qwen3.5-MoE
// have experts with a shared expert and its gate; the weights of the selected experts have the sum 1, in Qwen3-Next
// unless norm_topk_prob is false.
#include "hf/decoder.h"

#include <algorithm>

#include "config/experts.h"

namespace metroplex::hf {
namespace qwen3_next {

static void add_linear_layers(const ConfigReader& config, Settings& settings) {
  const int64_t every = config.integer("full_attention_interval", 4);
  config.require(every > 0, "full_attention_interval", "a number above 0");
  std::vector<bool> linear;
  for (int64_t i = 0; i < num_layers(config); ++i) linear.push_back((i + 1) % every != 0);
  if (config.has("layer_types")) {
    const Json& types = config.value("layer_types");
    config.require(types.is_array() && types.size() == linear.size(), "layer_types",
                   "a list with one word per layer");
    for (size_t i = 0; i < linear.size(); ++i) {
      config.require(types[i] == "linear_attention" || types[i] == "full_attention", "layer_types",
                     "a list of linear_attention and full_attention");
      linear[i] = types[i] == "linear_attention";
    }
  }
  const std::pair<const char*, int64_t> sizes[] = {{"linear_conv_kernel_dim", 4},
                                                   {"linear_key_head_dim", 128},
                                                   {"linear_value_head_dim", 128},
                                                   {"linear_num_key_heads", 16},
                                                   {"linear_num_value_heads", 32}};
  const bool any = std::find(linear.begin(), linear.end(), true) != linear.end();
  for (const auto& [key, otherwise] : sizes) {
    const int64_t size = config.integer(key, otherwise);
    if (any) set(settings, key, size);
  }
  if (!any) return;
  set(settings, "experimental_attention_variant", "gated_delta_net");
  set(settings, "linear_attention_freq", layer_pattern(linear));
}

static Settings dense_settings(ConfigReader& config, int64_t key_value_heads) {
  config.add_defaults({{"num_key_value_heads", key_value_heads},
                       {"head_dim", 256},
                       {"max_position_embeddings", 32768},
                       {"partial_rotary_factor", 0.25}});
  Settings settings = sizes_and_positions(config, PartialRope::read);
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  set(settings, "apply_layernorm_1p", true);
  set(settings, "qk_layernorm", true);
  set(settings, "attention_output_gate", true);
  add_linear_layers(config, settings);
  return settings;
}

static void add_experts(const ConfigReader& config, int64_t experts, const std::string& layers, bool normalized,
                        Settings& settings) {
  add_softmax_experts(config, experts, layers, normalized, settings);
  const int64_t shared = config.integer("shared_expert_intermediate_size", 512);
  if (layers.find('1') == std::string::npos) return;
  set(settings, "moe_shared_expert_intermediate_size", shared);
  set(settings, "moe_shared_expert_gate", true);
}

static Settings settings_next(ConfigReader& config) {
  config.add_defaults({{"moe_intermediate_size", 512}, {"num_experts_per_tok", 10}});
  Settings settings = dense_settings(config, 2);
  add_experts(config, 512, sparse_layers(config), config.flag("norm_topk_prob", true), settings);
  return settings;
}

static Settings settings_3_5(ConfigReader& config) { return dense_settings(config, 4); }

static Settings settings_3_5_moe(ConfigReader& config) {
  config.add_defaults({{"moe_intermediate_size", 512}, {"num_experts_per_tok", 8}, {"intermediate_size", 0}});
  Settings settings = dense_settings(config, 2);
  add_experts(config, 256, layer_pattern(std::vector<bool>(static_cast<size_t>(num_layers(config)), true)), true,
              settings);
  return settings;
}

static std::vector<MappedTensor> tensors_next(const config::Model& m) {
  return decoder_tensors(m, {.fused_delta_net = true, .shared = "shared_expert"});
}

static std::vector<MappedTensor> tensors_3_5(const config::Model& m) {
  return decoder_tensors(m, {.shared = "shared_expert"});
}

static Json config_3_5(const config::Model& m) {
  Json json = decoder_config(m);
  json["rope_parameters"]["partial_rotary_factor"] = m.rotary_percent;
  json["attention_bias"] = m.add_qkv_bias;
  json["layer_types"] = layer_types(m);
  json["linear_conv_kernel_dim"] = m.linear_conv_kernel_dim;
  json["linear_key_head_dim"] = m.linear_key_head_dim;
  json["linear_value_head_dim"] = m.linear_value_head_dim;
  json["linear_num_key_heads"] = m.linear_num_key_heads;
  json["linear_num_value_heads"] = m.linear_num_value_heads;
  return json;
}

static Json config_next(const config::Model& m) {
  Json json = config_3_5(m);
  add_sparse_config(m, json);
  json["shared_expert_intermediate_size"] = m.moe_shared_expert_intermediate_size;
  return json;
}

static Json config_3_5_moe(const config::Model& m) {
  Json json = config_next(m);
  for (const char* key : {"intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"})
    json.erase(key);
  return json;
}

}  // namespace qwen3_next

const Family kQwen3Next{"qwen3_next", "Qwen3NextForCausalLM", qwen3_next::settings_next, qwen3_next::tensors_next,
                        qwen3_next::config_next};
const Family kQwen35{"qwen3_5_text", "Qwen3_5ForCausalLM", qwen3_next::settings_3_5, qwen3_next::tensors_3_5,
                     qwen3_next::config_3_5};
const Family kQwen35Moe{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", qwen3_next::settings_3_5_moe,
                        qwen3_next::tensors_3_5, qwen3_next::config_3_5_moe};

}  // namespace metroplex::hf
