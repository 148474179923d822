// Llama4ForCausalLM, the text model of Llama 4: attention inside chunks in layers with rotary positions, whose
// queries and keys have norms without weights; scaled queries in the other layers; experts whose inputs are scaled,
// next to a shared expert.
#include "hf/decoder.h"

#include <algorithm>

#include "config/experts.h"

namespace metroplex::hf {
namespace llama4 {

static bool has_any(const std::vector<bool>& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

static void add_chunks(const ConfigReader& config, const std::vector<bool>& rotated, Settings& settings) {
  const std::vector<bool> chunked = typed_layers(config, "chunked_attention", rotated);
  const int64_t chunk = config.integer("attention_chunk_size", 0);
  if (!has_any(chunked)) return;
  config.require(chunk > 0, "attention_chunk_size", "a number above 0 with layers of the type chunked_attention");
  set(settings, "attention_chunk_size", chunk);
  if (std::find(chunked.begin(), chunked.end(), false) != chunked.end())
    set(settings, "window_attn_skip_freq", layer_pattern(chunked));
}

// Early files store attn_temperature_tuning as a number.
static void add_query_scaling(const ConfigReader& config, const std::vector<bool>& rotated, Settings& settings) {
  const Json& tuning = config.value("attn_temperature_tuning");
  const bool scales = tuning.is_number_integer() ? tuning != 0 : config.flag("attn_temperature_tuning", true);
  const int64_t floor = config.integer("floor_scale", 8192);
  const double scale = config.number("attn_scale", 0.1);
  config.require(floor > 0, "floor_scale", "a number above 0");
  config.require(scale >= 0, "attn_scale", "a number of at least 0");
  if (!scales || scale == 0 || std::find(rotated.begin(), rotated.end(), false) == rotated.end()) return;
  set(settings, "query_scaling_beta", scale);
  set(settings, "query_scaling_floor", floor);
}

// moe_layers, or every interleave_moe_layer_step-th layer.
static std::vector<bool> expert_layers(const ConfigReader& config) {
  const int64_t count = num_layers(config), step = config.integer("interleave_moe_layer_step", 1);
  config.require(step > 0, "interleave_moe_layer_step", "a number above 0");
  std::vector<bool> layers;
  for (int64_t i = 0; i < count; ++i) layers.push_back((i + 1) % step == 0);
  const Json& list = config.value("moe_layers");
  if (list.is_null()) return layers;
  const bool numbers = list.is_array() && std::all_of(list.begin(), list.end(), [&](const Json& layer) {
                         return layer.is_number_integer() && layer >= 0 && layer < count;
                       });
  config.require(numbers, "moe_layers", "a list of layers");
  layers.assign(layers.size(), false);
  for (const Json& layer : list) layers[layer.get<size_t>()] = true;
  return layers;
}

static void add_experts(const ConfigReader& config, Settings& settings) {
  const std::vector<bool> layers = expert_layers(config);
  const int64_t experts = config.integer("num_local_experts", 16), width = config.integer("intermediate_size");
  config.require(config.integer("num_experts_per_tok", 1) == 1, "num_experts_per_tok", "1");
  config.ignore({"router_jitter_noise", "for_llm_compressor"});  // no code of transformers reads them
  if (!has_any(layers)) return;
  set(settings, "num_moe_experts", experts);
  set(settings, "moe_layer_freq", layer_pattern(layers));
  set(settings, "moe_router_topk", 1);
  set(settings, "moe_router_score_function", "sigmoid");
  set(settings, "moe_router_topk_normalization", "never");
  set(settings, "moe_apply_probs_on_input", true);
  set(settings, "moe_ffn_hidden_size", width);
  set(settings, "moe_shared_expert_intermediate_size", width);
  add_balancing(config, settings);
}

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"head_dim", 128},
                       {"rms_norm_eps", 1e-5},
                       {"max_position_embeddings", 131072},
                       {"rope_theta", 500000.0},
                       {"vocab_size", 202048},
                       {"hidden_size", 5120},
                       {"num_hidden_layers", 48},
                       {"num_attention_heads", 40},
                       {"intermediate_size", 8192},
                       {"attention_chunk_size", 8192}});
  if (config.value("no_rope_layers") == Json::array()) config.replace("no_rope_layers", nullptr);  // published files
  Settings settings = sizes_and_positions(config);
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  set(settings, "ffn_hidden_size", config.integer("intermediate_size_mlp", 16384));
  set(settings, "rotary_interleaved", true);
  const std::vector<bool> rotated = add_rotated_layers(config, settings);
  set(settings, "qk_l2_norm", config.flag("use_qk_norm", true) && has_any(rotated));
  add_chunks(config, rotated, settings);
  add_query_scaling(config, rotated, settings);
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  add_experts(config, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.mlp = "feed_forward",
                             .experts = DecoderNames::Experts::columns,
                             .block = "feed_forward",
                             .router = "router",
                             .shared = "shared_expert"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["intermediate_size_mlp"] = m.ffn_hidden_size;
  json["attention_bias"] = m.output_bias();
  json["use_qk_norm"] = m.qk_l2_norm;
  json["no_rope_layers"] = rotated_layers_config(m);
  json["layer_types"] = layer_types(m, "chunked_attention");
  // transformers also requires a number without layers that use it.
  json["attention_chunk_size"] = m.attention_chunk_size > 0 ? m.attention_chunk_size : 8192;
  json["attn_temperature_tuning"] = m.query_scaling_floor > 0;
  if (m.query_scaling_floor > 0)
    json["attn_scale"] = m.query_scaling_beta, json["floor_scale"] = m.query_scaling_floor;
  json["moe_layers"] = Json::array();
  if (!m.has_experts()) return json;
  const std::vector<bool> experts = config::moe_layers(m);
  for (size_t i = 0; i < experts.size(); ++i) {
    if (experts[i]) json["moe_layers"].push_back(i);
  }
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["output_router_logits"] = false;
  return json;
}

}  // namespace llama4

const Family kLlama4{"llama4_text", "Llama4ForCausalLM", llama4::settings, llama4::tensors, llama4::make_config};

}  // namespace metroplex::hf
