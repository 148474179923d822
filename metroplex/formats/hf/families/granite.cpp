// GraniteForCausalLM and GraniteMoeForCausalLM: factors of embeddings, attention scores, residual branches and
// logits.
#include "hf/decoder.h"

#include <cmath>

#include "config/experts.h"

namespace metroplex::hf {
namespace granite {

static Settings shared_settings(const ConfigReader& config) {
  Settings settings = decoder_settings(config, Window::refused);
  const auto factor = [&](const char* key) {
    const double value = config.number(key, 1.0);
    config.require(value > 0, key, "a number above 0");
    return value;
  };
  set(settings, "embedding_multiplier", factor("embedding_multiplier"));
  set(settings, "residual_multiplier", factor("residual_multiplier"));
  set(settings, "logits_scaling", factor("logits_scaling"));
  set(settings, "softmax_scale", factor("attention_multiplier"));
  return settings;
}

static Settings settings(ConfigReader& config) {
  Settings settings = shared_settings(config);
  const bool attention = config.flag("attention_bias", false);
  add_biases(attention, attention, config.flag("mlp_bias", false), settings);
  return settings;
}

static Settings moe_settings(ConfigReader& config) {
  Settings settings = shared_settings(config);
  const bool attention = config.flag("attention_bias", false);
  add_biases(attention, attention, false, settings);
  set(settings, "num_moe_experts", config.integer("num_local_experts", 8));
  add_chosen_softmax(config.integer("num_experts_per_tok", 2), settings);
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  add_balancing(config, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static std::vector<MappedTensor> moe_tensors(const config::Model& m) {
  return decoder_tensors(m, {.experts = DecoderNames::Experts::rows,
                             .block = "block_sparse_moe",
                             .up = "input_linear",
                             .down = "output_linear",
                             .router = "router.layer"});
}

static Json shared_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["embedding_multiplier"] = m.embedding_multiplier;
  json["residual_multiplier"] = m.residual_multiplier;
  json["logits_scaling"] = m.logits_scaling;
  const auto head_dim = static_cast<double>(json.at("head_dim").get<int64_t>());
  json["attention_multiplier"] = m.softmax_scale > 0 ? m.softmax_scale : 1 / std::sqrt(head_dim);
  json["attention_bias"] = m.output_bias();
  return json;
}

static Json make_config(const config::Model& m) {
  Json json = shared_config(m);
  json["mlp_bias"] = m.mlp_bias();
  return json;
}

static Json moe_config(const config::Model& m) {
  Json json = shared_config(m);
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["output_router_logits"] = false;
  return json;
}

}  // namespace granite

const Family kGranite{"granite", "GraniteForCausalLM", granite::settings, granite::tensors, granite::make_config};
const Family kGraniteMoe{"granitemoe", "GraniteMoeForCausalLM", granite::moe_settings, granite::moe_tensors,
                         granite::moe_config};

}  // namespace metroplex::hf
