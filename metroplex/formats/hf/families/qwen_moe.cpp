// Qwen2MoeForCausalLM, arXiv 2407.10671, and Qwen3MoeForCausalLM, arXiv 2505.09388: experts in some layers. The
// weights of the selected experts come from a softmax over all experts. With norm_topk_prob they are normalized to a
// sum of 1, which is a softmax over the selected experts. Version 2 has a shared expert with a gate, version 3 norms
// of queries and keys.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace qwen_moe {

static Settings settings_v2(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 16},
                       {"max_position_embeddings", 32768},
                       {"sliding_window", 4096},
                       {"num_experts_per_tok", 4},
                       {"moe_intermediate_size", 1408}});
  Settings settings = sizes_and_positions(config);
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  config.ignore({"sliding_window", "max_window_layers", "layer_types"});
  if (config.flag("use_sliding_window", false)) {
    std::vector<bool> slides;
    for (int64_t i = 0; i < num_layers(config); ++i)
      slides.push_back(i % 2 == 0 && i < config.integer("max_window_layers", 28));
    add_windows(config, slides, settings);
  }
  add_biases(config.flag("qkv_bias", true), false, false, settings);
  add_softmax_experts(config, 60, sparse_layers(config), config.flag("norm_topk_prob", false), settings);
  set(settings, "moe_shared_expert_intermediate_size", config.integer("shared_expert_intermediate_size", 5632));
  set(settings, "moe_shared_expert_gate", true);
  return settings;
}

static Settings settings_v3(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 4},
                       {"max_position_embeddings", 32768},
                       {"sliding_window", 4096},
                       {"num_experts_per_tok", 8},
                       {"moe_intermediate_size", 768}});
  Settings settings = decoder_settings(config, Window::switched);
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  set(settings, "qk_layernorm", true);
  add_softmax_experts(config, 128, sparse_layers(config), config.flag("norm_topk_prob", false), settings);
  return settings;
}

static std::vector<MappedTensor> tensors_v2(const config::Model& m) {
  return decoder_tensors(m, {.shared = "shared_expert"});
}

static std::vector<MappedTensor> tensors_v3(const config::Model& m) { return decoder_tensors(m, {}); }

static Json shared_config(const config::Model& m) {
  Json json = decoder_config(m);
  add_sparse_config(m, json);
  add_switched_window(m, json);
  return json;
}

static Json config_v2(const config::Model& m) {
  Json json = shared_config(m);
  json["qkv_bias"] = m.add_qkv_bias;
  json["shared_expert_intermediate_size"] = m.moe_shared_expert_intermediate_size;
  return json;
}

static Json config_v3(const config::Model& m) {
  Json json = shared_config(m);
  json["attention_bias"] = m.add_qkv_bias;
  return json;
}

}  // namespace qwen_moe

const Family kQwen2Moe{"qwen2_moe", "Qwen2MoeForCausalLM", qwen_moe::settings_v2, qwen_moe::tensors_v2,
                       qwen_moe::config_v2};
const Family kQwen3Moe{"qwen3_moe", "Qwen3MoeForCausalLM", qwen_moe::settings_v3, qwen_moe::tensors_v3,
                       qwen_moe::config_v3};

}  // namespace metroplex::hf
