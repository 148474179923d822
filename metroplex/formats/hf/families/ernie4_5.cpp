// Ernie4_5ForCausalLM: rotation of neighboring channels, a bias in all linear layers or in none.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace ernie4_5 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 2},
                       {"head_dim", 128},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 500000.0},
                       {"tie_word_embeddings", true}});
  Settings settings = decoder_settings(config, Window::refused);
  const bool biases = config.flag("use_bias", false);
  add_biases(biases, biases, biases, settings);
  set(settings, "rotary_interleaved", true);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["use_bias"] = m.output_bias();
  return json;
}

}  // namespace ernie4_5

const Family kErnie45{"ernie4_5", "Ernie4_5ForCausalLM", ernie4_5::settings, ernie4_5::tensors,
                      ernie4_5::make_config};

}  // namespace metroplex::hf
