// LlamaForCausalLM, arXiv 2302.13971; rope_type llama3: arXiv 2407.21783.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace llama {

static Settings settings(const Json& json) {
  const ConfigReader config(json);
  Settings s = decoder_settings(config, Window::said);
  const bool biases = config.flag("attention_bias", false);
  config.require(config.flag("mlp_bias", false) == biases, "mlp_bias", "the value of attention_bias");
  set(s, "family", biases ? "gpt" : "llama");
  set(s, "add_bias_linear", biases);
  return s;
}

static bool holds(const config::Model& m) {
  return plain_decoder(m) && !m.has_experts() && !m.qk_layernorm && (m.add_bias_linear || !m.add_qkv_bias);
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  const bool biases = m.add_bias_linear;
  return decoder_tensors(m, {.qkv_bias = biases, .output_bias = biases, .mlp_bias = biases});
}

static Json config_of(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = json["mlp_bias"] = m.add_bias_linear;
  return json;
}

}  // namespace llama

const Family kLlama{"llama", "LlamaForCausalLM", llama::settings, llama::tensors, llama::holds, llama::config_of};

}  // namespace metroplex::hf
