// LlamaForCausalLM, arXiv 2302.13971; rope_type llama3: arXiv 2407.21783.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace llama {

static Settings settings(const Json& json) {
  const ConfigReader config(json);
  Settings settings = decoder_settings(config, Window::refused);
  const bool of_attention = config.flag("attention_bias", false), of_mlp = config.flag("mlp_bias", false);
  set(settings, "family", of_attention && of_mlp ? "gpt" : "llama");
  set(settings, "add_bias_linear", of_attention && of_mlp);
  set(settings, "add_qkv_bias", of_attention);
  set(settings, "add_attention_output_bias", of_attention && !of_mlp);
  set(settings, "add_mlp_bias", of_mlp && !of_attention);
  return settings;
}

static bool holds(const config::Model& m) {
  return is_plain_decoder(m) && !m.has_experts() && !m.qk_layernorm &&
         (m.add_bias_linear || m.add_qkv_bias == m.add_attention_output_bias);
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.qkv_bias = m.output_bias(), .output_bias = m.output_bias(), .mlp_bias = m.mlp_bias()});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.output_bias();
  json["mlp_bias"] = m.mlp_bias();
  return json;
}

}  // namespace llama

const Family kLlama{"llama", "LlamaForCausalLM", llama::settings, llama::tensors, llama::holds, llama::make_config};

}  // namespace metroplex::hf
