// SmolLM3ForCausalLM: some layers have no rotary positions, and windows may be declared per layer.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace smollm3 {

// Returns, per layer, whether it has rotary positions.
static std::vector<bool> rotated_layers(const ConfigReader& config) {
  const auto layers = static_cast<size_t>(num_layers(config));
  const int64_t interval = config.integer("no_rope_layer_interval", 4);
  config.require(interval > 0, "no_rope_layer_interval", "a number above 0");
  std::vector<bool> rotated;
  const Json& list = config.value("no_rope_layers");
  config.require(list.is_null() || (list.is_array() && list.size() == layers), "no_rope_layers",
                 "a list of 0 and 1, one per layer");
  for (size_t i = 0; i < layers; ++i) {
    if (list.is_array()) config.require(list[i] == 0 || list[i] == 1, "no_rope_layers", "a list of 0 and 1");
    rotated.push_back(list.is_array() ? list[i] == 1 : (static_cast<int64_t>(i) + 1) % interval != 0);
  }
  return rotated;
}

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 4},
                       {"max_position_embeddings", 32768},
                       {"rope_theta", 2000000.0},
                       {"tie_word_embeddings", true}});
  Settings settings = sizes_and_positions(config);
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  std::vector<bool> unrotated = rotated_layers(config);
  unrotated.flip();
  if (std::find(unrotated.begin(), unrotated.end(), true) != unrotated.end())
    set(settings, "no_rope_freq", layer_pattern(unrotated));
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
  json["no_rope_layers"] = Json::array();
  for (const bool rotated : config::rope_layers(m)) json["no_rope_layers"].push_back(rotated ? 1 : 0);
  json["use_sliding_window"] = m.has_window();
  json["sliding_window"] = window_config(m);
  json["layer_types"] = layer_types(m);
  return json;
}

}  // namespace smollm3

const Family kSmolLm3{"smollm3", "SmolLM3ForCausalLM", smollm3::settings, smollm3::tensors, smollm3::make_config};

}  // namespace metroplex::hf
