// HunYuanDenseV1ForCausalLM and HunYuanMoEV1ForCausalLM: norms of queries and keys after the rotation, whose base
// rope_type "dynamic" changes by a fixed `alpha`. All layers of the MoE model have experts and a shared expert of the
// same width.
#include "hf/decoder.h"

#include <cmath>

#include "config/experts.h"

namespace metroplex::hf {
namespace hunyuan {

// Replaces rope_type "dynamic" with the base that `alpha` means: theta alpha^(d / (d - 2)) for heads of width d.
static void resolve_alpha(ConfigReader& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    Json rope = config.value(key);
    if (!rope.is_object() || rope.value("rope_type", rope.value("type", "")) != "dynamic") continue;
    const ConfigReader declared(rope);
    declared.require(declared.number("alpha", 0) > 0, "alpha", "a number above 0 with rope_type dynamic");
    const int64_t heads = std::max<int64_t>(1, config.integer("num_attention_heads"));
    const auto width = static_cast<double>(config.integer("head_dim", config.integer("hidden_size") / heads));
    const double base = declared.number("rope_theta", config.number("rope_theta", 10000.0));
    config.replace(key, {{"rope_theta", base * std::pow(declared.number("alpha", 1), width / (width - 2))}});
  }
}

static Settings shared_settings(ConfigReader& config) {
  config.add_defaults({{"rms_norm_eps", 1e-5}});
  resolve_alpha(config);
  Settings settings = decoder_settings(config, Window::refused);
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  set(settings, "qk_layernorm", true);
  set(settings, "qk_layernorm_after_rope", true);
  return settings;
}

static Settings settings(ConfigReader& config) { return shared_settings(config); }

// A number, or a list with the same number for each layer.
static int64_t number_per_layer(const ConfigReader& config, const char* key) {
  const Json& value = config.value(key);
  if (!value.is_array()) return config.integer(key, 1);
  bool same = !value.empty() && value[0].is_number_integer();
  for (const Json& one : value) same = same && one == value[0];
  config.require(same, key, "one number, or the same number for every layer");
  return value[0].get<int64_t>();
}

static Settings moe_settings(ConfigReader& config) {
  Settings settings = shared_settings(config);
  const int64_t width = config.integer("intermediate_size");
  set(settings, "num_moe_experts", number_per_layer(config, "num_experts"));
  add_chosen_softmax(number_per_layer(config, "moe_topk"), settings);
  set(settings, "moe_ffn_hidden_size", width);
  set(settings, "moe_shared_expert_intermediate_size", width);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(
      m, {.q_norm = "query_layernorm", .k_norm = "key_layernorm", .router = "gate.wg", .shared = "shared_mlp"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.output_bias();
  return json;
}

static Json moe_config(const config::Model& m) {
  Json json = make_config(m);
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_experts"] = m.num_moe_experts;
  json["moe_topk"] = m.moe_router_topk;
  return json;
}

}  // namespace hunyuan

const Family kHunYuanDense{"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", hunyuan::settings, hunyuan::tensors,
                           hunyuan::make_config};
const Family kHunYuanMoe{"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", hunyuan::moe_settings, hunyuan::tensors,
                         hunyuan::moe_config};

}  // namespace metroplex::hf
