// Phi3ForCausalLM, arXiv 2404.14219: LongRoPE, rotation of a part of each head, fused projections.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace phi3 {

// Older files call LongRoPE "su" or "yarn".
static void rename_longrope(ConfigReader& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    Json rope = config.value(key);
    if (!rope.is_object()) continue;
    const std::string type = ConfigReader(rope).text("rope_type", ConfigReader(rope).text("type", "default"));
    if (type != "su" && type != "yarn") continue;
    rope["rope_type"] = "longrope";
    config.replace(key, rope);
  }
}

static Settings settings(ConfigReader& config) {
  config.add_defaults(
      {{"max_position_embeddings", 4096}, {"original_max_position_embeddings", 4096}, {"rms_norm_eps", 1e-5}});
  rename_longrope(config);
  config.ignore({"original_max_position_embeddings"});
  Settings settings = decoder_settings(config, Window::declared, PartialRope::read);
  add_biases(false, false, false, settings);
  config.require(!config.flag("attention_bias", false), "attention_bias", "false");
  const double dropout = config.number("resid_pdrop", 0.0);
  config.require(config.number("embd_pdrop", 0.0) == dropout, "embd_pdrop", "the value of resid_pdrop");
  set(settings, "hidden_dropout", dropout);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.fused_qkv = true, .mlp_gate = "", .mlp_up = "gate_up_proj"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["rope_parameters"]["partial_rotary_factor"] = m.rotary_percent;
  json["original_max_position_embeddings"] =
      m.longrope() ? m.original_max_position_embeddings : m.max_position_embeddings;
  json["sliding_window"] = window_config(m);
  json["resid_pdrop"] = json["embd_pdrop"] = m.hidden_dropout;
  return json;
}

}  // namespace phi3

const Family kPhi3{"phi3", "Phi3ForCausalLM", phi3::settings, phi3::tensors, phi3::make_config};

}  // namespace metroplex::hf
