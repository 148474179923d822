// SmolLM3ForCausalLM: some layers have no rotary positions, and windows may be declared per layer.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace smollm3 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 4},
                       {"max_position_embeddings", 32768},
                       {"rope_theta", 2000000.0},
                       {"tie_word_embeddings", true}});
  Settings settings = sizes_and_positions(config);
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  std::vector<bool> unrotated = add_rotated_layers(config, settings);
  unrotated.flip();
  config.ignore({"max_window_layers"});
  const bool slides = config.flag("use_sliding_window", false);
  add_windows(config, slides ? unrotated : std::vector<bool>(unrotated.size()), settings);
  const bool attention = config.flag("attention_bias", false);
  add_biases(attention, attention, config.flag("mlp_bias", false), settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.output_bias();
  json["mlp_bias"] = m.mlp_bias();
  json["no_rope_layers"] = rotated_layers_config(m);
  json["use_sliding_window"] = m.has_window();
  json["sliding_window"] = window_config(m);
  json["layer_types"] = layer_types(m);
  return json;
}

}  // namespace smollm3

const Family kSmolLm3{"smollm3", "SmolLM3ForCausalLM", smollm3::settings, smollm3::tensors, smollm3::make_config};

}  // namespace metroplex::hf
