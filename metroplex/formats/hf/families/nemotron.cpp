// NemotronForCausalLM, arXiv 2402.16819: LayerNorm that multiplies by 1 + weight, an MLP without a gate, and rotation
// of a part of each head.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace nemotron {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"max_position_embeddings", 4096},
                       {"norm_eps", 1e-5},
                       {"initializer_range", 0.0134},
                       {"partial_rotary_factor", 0.5}});
  Settings settings = sizes_and_positions(config, PartialRope::read, "norm_eps");
  add_activation(config, "hidden_act", "relu2", settings);
  add_heads(config, settings);
  const bool attention = config.flag("attention_bias", false);
  add_biases(attention, attention, config.flag("mlp_bias", false), settings);
  set(settings, "normalization", "LayerNorm");
  set(settings, "apply_layernorm_1p", true);
  set(settings, "gated_linear_unit", false);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json.erase("rms_norm_eps");
  json["norm_eps"] = m.layernorm_epsilon;
  json["attention_bias"] = m.output_bias();
  json["mlp_bias"] = m.mlp_bias();
  json["rope_parameters"]["partial_rotary_factor"] = m.rotary_percent;
  return json;
}

}  // namespace nemotron

const Family kNemotron{"nemotron", "NemotronForCausalLM", nemotron::settings, nemotron::tensors,
                       nemotron::make_config};

}  // namespace metroplex::hf
