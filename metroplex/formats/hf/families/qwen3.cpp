// Qwen3ForCausalLM, arXiv 2505.09388: a norm over each head's queries and keys.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace qwen3 {

static Settings settings(ConfigReader& config) {
  config.add_defaults(
      {{"num_key_value_heads", 32}, {"head_dim", 128}, {"max_position_embeddings", 32768}, {"sliding_window", 4096}});
  Settings settings = decoder_settings(config, Window::switched);
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  set(settings, "qk_layernorm", true);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.add_qkv_bias;
  add_switched_window(m, json);
  return json;
}

}  // namespace qwen3

const Family kQwen3{"qwen3", "Qwen3ForCausalLM", qwen3::settings, qwen3::tensors, qwen3::make_config};

}  // namespace metroplex::hf
