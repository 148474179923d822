// Qwen3MoeForCausalLM, arXiv 2505.09388: qwen3 with experts in some layers. The weights of the selected experts come
// from a softmax over all experts. With norm_topk_prob they are normalized to a sum of 1, which is a softmax over the
// selected experts.
#include "hf/decoder.h"

#include <algorithm>

#include "config/experts.h"

namespace metroplex::hf {
namespace qwen3_moe {

static std::string layers_with_experts(const ConfigReader& config) {
  const int64_t step = config.integer("decoder_sparse_step", 1);
  config.require(step > 0, "decoder_sparse_step", "a number above 0");
  std::vector<int64_t> dense;
  if (config.has("mlp_only_layers")) {
    const Json& list = config.json().at("mlp_only_layers");
    const bool numbers = list.is_array() && std::all_of(list.begin(), list.end(),
                                                        [](const Json& layer) { return layer.is_number_integer(); });
    config.require(numbers, "mlp_only_layers", "a list of layers");
    dense = list.get<std::vector<int64_t>>();
  }
  std::vector<bool> layers;
  for (int64_t i = 0; i < num_layers(config); ++i)
    layers.push_back((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end());
  return layer_pattern(layers);
}

static Settings settings(const Json& given) {
  const Json json =
      add_defaults(given, {{"num_key_value_heads", 4}, {"max_position_embeddings", 32768}, {"sliding_window", 4096}});
  const ConfigReader config(json);
  Settings settings = decoder_settings(config, Window::switched);
  const bool biases = config.flag("attention_bias", false);
  set(settings, "add_qkv_bias", biases);
  set(settings, "add_attention_output_bias", biases);
  set(settings, "family", "qwen3_moe");
  set(settings, "add_bias_linear", false);
  set(settings, "qk_layernorm", true);
  set(settings, "num_moe_experts", config.integer("num_experts", config.integer("num_local_experts", 128)));
  set(settings, "moe_router_topk", config.integer("num_experts_per_tok", 8));
  set(settings, "moe_ffn_hidden_size", config.integer("moe_intermediate_size", 768));
  set(settings, "moe_layer_freq", layers_with_experts(config));
  set(settings, "moe_router_pre_softmax", !config.flag("norm_topk_prob", false));
  if (config.flag("output_router_logits", false))
    set(settings, "moe_aux_loss_coeff", config.number("router_aux_loss_coef", 0.001));
  return settings;
}

static bool holds(const config::Model& m) {
  return is_plain_decoder(m, Windows::allowed) && m.has_experts() && m.qk_layernorm && !m.mlp_bias() &&
         m.add_qkv_bias == m.output_bias() && m.moe_router_score_function == config::ScoreFunction::softmax &&
         m.moe_router_num_groups == 0 && m.moe_router_topk_scaling_factor == 0;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.qkv_bias = m.add_qkv_bias, .output_bias = m.add_qkv_bias, .qk_norm = true});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  const std::vector<bool> experts = config::moe_layers(m);
  Json dense = Json::array();
  for (size_t i = 0; i < experts.size(); ++i) {
    if (!experts[i]) dense.push_back(i);
  }
  json["num_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["moe_intermediate_size"] = config::expert_ffn_width(m);
  json["norm_topk_prob"] = !m.moe_router_pre_softmax;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense;
  json["output_router_logits"] = false;
  json["attention_bias"] = m.add_qkv_bias;
  add_switched_window(m, json);
  return json;
}

}  // namespace qwen3_moe

const Family kQwen3Moe{"qwen3_moe",        "Qwen3MoeForCausalLM", qwen3_moe::settings,
                       qwen3_moe::tensors, qwen3_moe::holds,      qwen3_moe::make_config};

}  // namespace metroplex::hf
