// MistralForCausalLM, arXiv 2310.06825: a window in all layers.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace mistral {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8}, {"max_position_embeddings", 131072}, {"sliding_window", 4096}});
  config.require(!config.has("layer_types"), "layer_types", "the window in all layers (null)");
  Settings settings = decoder_settings(config, Window::declared);
  add_biases(false, false, false, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["sliding_window"] = window_config(m);
  return json;
}

}  // namespace mistral

const Family kMistral{"mistral", "MistralForCausalLM", mistral::settings, mistral::tensors, mistral::make_config};

}  // namespace metroplex::hf
