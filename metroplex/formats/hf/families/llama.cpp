// LlamaForCausalLM, arXiv 2302.13971; rope_type llama3: arXiv 2407.21783. ArceeForCausalLM: an MLP without a gate.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace llama {

static Settings shared_settings(const ConfigReader& config) {
  Settings settings = decoder_settings(config, Window::refused);
  const bool attention = config.flag("attention_bias", false), mlp = config.flag("mlp_bias", false);
  add_biases(attention, attention, mlp, settings);
  return settings;
}

static Settings settings(ConfigReader& config) { return shared_settings(config); }

static Settings arcee_settings(ConfigReader& config) {
  config.add_defaults({{"hidden_act", "relu2"}, {"max_position_embeddings", 4096}, {"rms_norm_eps", 1e-5}});
  Settings settings = shared_settings(config);
  set(settings, "gated_linear_unit", false);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.output_bias();
  json["mlp_bias"] = m.mlp_bias();
  return json;
}

}  // namespace llama

const Family kLlama{"llama", "LlamaForCausalLM", llama::settings, llama::tensors, llama::make_config};
const Family kArcee{"arcee", "ArceeForCausalLM", llama::arcee_settings, llama::tensors, llama::make_config};

}  // namespace metroplex::hf
