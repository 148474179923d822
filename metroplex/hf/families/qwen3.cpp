// Qwen3ForCausalLM, arXiv 2505.09388: a norm over each head's queries and keys.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace qwen3 {

static Settings settings(const Json& json) {
  const ConfigReader config(json);
  Settings s = decoder_settings(config, Window::switched);
  config.require(!config.flag("attention_bias", false), "attention_bias", "false");
  set(s, "family", "llama");
  set(s, "add_bias_linear", false);
  set(s, "qk_layernorm", true);
  return s;
}

static bool holds(const config::Model& m) {
  return plain_decoder(m) && !m.has_experts() && m.qk_layernorm && !m.add_bias_linear && !m.add_qkv_bias;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {.qk_norm = true}); }

static Json config_of(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = json["use_sliding_window"] = false;
  return json;
}

}  // namespace qwen3

const Family kQwen3{"qwen3", "Qwen3ForCausalLM", qwen3::settings, qwen3::tensors, qwen3::holds, qwen3::config_of};

}  // namespace metroplex::hf
