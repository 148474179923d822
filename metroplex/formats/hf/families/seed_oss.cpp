// SeedOssForCausalLM: biases of queries, keys and values, and of the projection after attention, independently.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace seed_oss {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"head_dim", 128},
                       {"max_position_embeddings", 524288},
                       {"attention_dropout", 0.1}});
  Settings settings = decoder_settings(config, Window::refused);
  add_biases(config.flag("attention_bias", true), config.flag("attention_out_bias", false),
             config.flag("mlp_bias", false), settings);
  set(settings, "hidden_dropout", config.number("residual_dropout", 0.1));
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.add_qkv_bias || m.add_bias_linear;
  json["attention_out_bias"] = m.output_bias();
  json["mlp_bias"] = m.mlp_bias();
  json["residual_dropout"] = m.hidden_dropout;
  return json;
}

}  // namespace seed_oss

const Family kSeedOss{"seed_oss", "SeedOssForCausalLM", seed_oss::settings, seed_oss::tensors, seed_oss::make_config};

}  // namespace metroplex::hf
