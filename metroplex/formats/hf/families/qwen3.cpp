// Qwen3ForCausalLM, arXiv 2505.09388: a norm over each head's queries and keys.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace qwen3 {

static Settings settings(const Json& given) {
  const Json json = with_defaults(
      given,
      {{"num_key_value_heads", 32}, {"head_dim", 128}, {"max_position_embeddings", 32768}, {"sliding_window", 4096}});
  const ConfigReader config(json);
  Settings s = decoder_settings(config, Window::switched);
  const bool biases = config.flag("attention_bias", false);
  set(s, "add_qkv_bias", biases);
  set(s, "add_attention_output_bias", biases);
  set(s, "family", "llama");
  set(s, "add_bias_linear", false);
  set(s, "qk_layernorm", true);
  return s;
}

static bool holds(const config::Model& m) {
  return plain_decoder(m, Windows::allowed) && !m.has_experts() && m.qk_layernorm && !m.mlp_bias() &&
         m.add_qkv_bias == m.output_bias();
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.qkv_bias = m.add_qkv_bias, .output_bias = m.add_qkv_bias, .qk_norm = true});
}

static Json config_of(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.add_qkv_bias;
  add_switched_window(m, json);
  return json;
}

}  // namespace qwen3

const Family kQwen3{"qwen3", "Qwen3ForCausalLM", qwen3::settings, qwen3::tensors, qwen3::holds, qwen3::config_of};

}  // namespace metroplex::hf
