// Olmo2ForCausalLM, arXiv 2501.00656, and Olmo3ForCausalLM: norms after attention and MLP only, and norms of queries
// and keys over all heads. Version 3 has windows in some layers, where the rotary frequencies are never scaled.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace olmo {

static Settings shared_settings(const ConfigReader& config) {
  Settings settings = sizes_and_positions(config);
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  set(settings, "pre_norm", false);
  set(settings, "sandwich_norm", true);
  set(settings, "qk_layernorm", true);
  set(settings, "qk_layernorm_all_heads", true);
  return settings;
}

static Settings settings_v2(ConfigReader& config) {
  config.add_defaults({{"rms_norm_eps", 1e-5}});
  return shared_settings(config);
}

static Settings settings_v3(ConfigReader& config) {
  config.add_defaults({{"rms_norm_eps", 1e-5}, {"sliding_window", 4096}, {"rope_theta", 500000.0}});
  Settings settings = shared_settings(config);
  std::vector<bool> slides;
  for (int64_t i = 0; i < num_layers(config); ++i) slides.push_back((i + 1) % 4 != 0);
  add_windows(config, slides, settings);
  add_local_base(config, config.number("rope_theta", 500000.0), settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json config_v2(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.output_bias();
  return json;
}

static Json config_v3(const config::Model& m) {
  Json json = config_v2(m);
  json["sliding_window"] = window_config(m);
  json["layer_types"] = layer_types(m);
  json["rope_parameters"] = rope_config_by_layer_type(m);
  return json;
}

}  // namespace olmo

const Family kOlmo2{"olmo2", "Olmo2ForCausalLM", olmo::settings_v2, olmo::tensors, olmo::config_v2};
const Family kOlmo3{"olmo3", "Olmo3ForCausalLM", olmo::settings_v3, olmo::tensors, olmo::config_v3};

}  // namespace metroplex::hf
