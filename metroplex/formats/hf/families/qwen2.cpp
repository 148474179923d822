// Qwen2ForCausalLM, arXiv 2407.10671: only queries, keys and values have biases.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace qwen2 {

static Settings settings(const Json& given) {
  const Json json = add_defaults(
      given, {{"num_key_value_heads", 32}, {"max_position_embeddings", 32768}, {"sliding_window", 4096}});
  const ConfigReader config(json);
  Settings settings = decoder_settings(config, Window::switched);
  set(settings, "family", "llama");
  set(settings, "add_bias_linear", false);
  set(settings, "add_qkv_bias", true);
  return settings;
}

static bool holds(const config::Model& m) {
  return is_plain_decoder(m, Windows::allowed) && !m.has_experts() && !m.qk_layernorm && m.add_qkv_bias &&
         !m.output_bias() && !m.mlp_bias();
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {.qkv_bias = true}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  add_switched_window(m, json);
  return json;
}

}  // namespace qwen2

const Family kQwen2{"qwen2", "Qwen2ForCausalLM", qwen2::settings, qwen2::tensors, qwen2::holds, qwen2::make_config};

}  // namespace metroplex::hf
