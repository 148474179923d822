// MistralForCausalLM, arXiv 2310.06825: a window in all layers. Ministral3ForCausalLM: YaRN, and queries that are
// scaled by their position.
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

// Queries are scaled by llama_4_scaling_beta of rope_parameters.
static Settings settings_v3(ConfigReader& config) {
  config.add_defaults(
      {{"num_key_value_heads", 8}, {"head_dim", 128}, {"max_position_embeddings", 262144}, {"rms_norm_eps", 1e-5}});
  if (!config.has("rope_parameters") && !config.has("rope_scaling")) {
    config.replace("rope_parameters", {{"rope_type", "yarn"},
                                       {"rope_theta", 1e6},
                                       {"factor", 16.0},
                                       {"original_max_position_embeddings", 16384},
                                       {"mscale_all_dim", 1.0},
                                       {"mscale", 1.0},
                                       {"llama_4_scaling_beta", 0.1}});
  }
  double beta = 0;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    Json rope = config.value(key);
    if (!rope.is_object() || !rope.contains("llama_4_scaling_beta")) continue;
    beta = ConfigReader(rope).number("llama_4_scaling_beta", 0);
    rope.erase("llama_4_scaling_beta");
    config.replace(key, rope);
  }
  config.require(!config.has("layer_types"), "layer_types", "the window in all layers (null)");
  Settings settings = decoder_settings(config, Window::declared);
  add_biases(false, false, false, settings);
  if (beta != 0) set(settings, "query_scaling_beta", beta);
  return settings;
}

static Json config_v3(const config::Model& m) {
  Json json = make_config(m);
  if (m.query_scaling_beta > 0) json["rope_parameters"]["llama_4_scaling_beta"] = m.query_scaling_beta;
  return json;
}

}  // namespace mistral

const Family kMistral{"mistral", "MistralForCausalLM", mistral::settings, mistral::tensors, mistral::make_config};
const Family kMinistral3{"ministral3", "Ministral3ForCausalLM", mistral::settings_v3, mistral::tensors,
                         mistral::config_v3};

}  // namespace metroplex::hf
