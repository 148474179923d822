// GemmaForCausalLM, arXiv 2403.08295, Gemma2ForCausalLM, arXiv 2408.00118, and Gemma3ForCausalLM, arXiv 2503.19786.
// All have norms that multiply by 1 + weight, scaled embeddings and GELU units. Versions 2 and 3 also have norms
// after attention and MLP, and windows in some layers. Version 2 has softcaps for attention scores and logits.
// Version 3 has QK norms and a separate rotary base for layers with a window. It ignores attn_logit_softcapping.
#include "hf/decoder.h"

#include <cmath>

#include "config/experts.h"

namespace metroplex::hf {
namespace gemma {

static Settings shared_settings(const ConfigReader& config) {
  Settings settings = sizes_and_positions(config);
  add_heads(config, settings);
  config.require(!config.flag("use_bidirectional_attention", false), "use_bidirectional_attention", "false");
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  set(settings, "apply_layernorm_1p", true);
  set(settings, "scale_embeddings", true);
  return settings;
}

static Settings settings_v1(ConfigReader& config) {
  config.add_defaults({{"vocab_size", 256000},
                       {"hidden_size", 3072},
                       {"intermediate_size", 24576},
                       {"num_hidden_layers", 28},
                       {"num_attention_heads", 16},
                       {"num_key_value_heads", 16},
                       {"head_dim", 256},
                       {"max_position_embeddings", 8192},
                       {"tie_word_embeddings", true}});
  // The first published files name the exact GELU, but the models were trained with its approximation.
  if (config.text("hidden_act", "gelu") == "gelu") config.replace("hidden_act", "gelu_pytorch_tanh");
  config.require(config.text("hidden_activation", "gelu_pytorch_tanh") == "gelu_pytorch_tanh", "hidden_activation",
                 "gelu_pytorch_tanh");
  Settings settings = shared_settings(config);
  add_activation(config, "hidden_act", "gelu_pytorch_tanh", settings);
  return settings;
}

static Settings newer_settings(const ConfigReader& config, int64_t full_every) {
  Settings settings = shared_settings(config);
  config.ignore({"hidden_act"});  // version 5 ignores it if both are present
  add_activation(config, config.has("hidden_activation") ? "hidden_activation" : "hidden_act", "gelu_pytorch_tanh",
                 settings);
  std::vector<bool> slides;
  for (int64_t i = 0; i < num_layers(config); ++i) slides.push_back((i + 1) % full_every != 0);
  add_windows(config, slides, settings);
  set(settings, "sandwich_norm", true);
  const double scalar = config.number("query_pre_attn_scalar", 256.0);
  config.require(scalar > 0, "query_pre_attn_scalar", "a number above 0");
  set(settings, "softmax_scale", 1 / std::sqrt(scalar));
  set(settings, "final_logit_softcapping", config.number("final_logit_softcapping", 0.0));
  return settings;
}

static Settings settings_v2(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 4},
                       {"head_dim", 256},
                       {"max_position_embeddings", 8192},
                       {"tie_word_embeddings", true},
                       {"sliding_window", 4096},
                       {"attn_logit_softcapping", 50.0},
                       {"final_logit_softcapping", 30.0}});
  Settings settings = newer_settings(config, 2);
  set(settings, "attn_logit_softcapping", config.number("attn_logit_softcapping", 0.0));
  return settings;
}

static Settings settings_v3(ConfigReader& config) {
  config.add_defaults({{"vocab_size", 262208},
                       {"hidden_size", 2304},
                       {"intermediate_size", 9216},
                       {"num_hidden_layers", 26},
                       {"num_attention_heads", 8},
                       {"num_key_value_heads", 4},
                       {"head_dim", 256},
                       {"max_position_embeddings", 131072},
                       {"tie_word_embeddings", true},
                       {"sliding_window", 4096},
                       {"rope_theta", 1e6}});
  const char* const pattern =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  config.ignore({"sliding_window_pattern", "_sliding_window_pattern", "attn_logit_softcapping"});
  const int64_t every = config.integer(pattern, 6);
  config.require(every > 0, pattern, "a number above 0");
  Settings settings = newer_settings(config, every);
  set(settings, "qk_layernorm", true);
  add_local_base(config, config.number("rope_local_base_freq", 10000.0), settings);
  return settings;
}

static std::vector<MappedTensor> tensors_v1(const config::Model& m) { return decoder_tensors(m, {}); }

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.mlp_input_norm = "pre_feedforward_layernorm"});
}

// Returns an integer if the scale was computed from one.
static Json to_query_scalar(double scale) {
  const double scalar = 1 / (scale * scale), whole = std::round(scalar);
  return whole > 0 && 1 / std::sqrt(whole) == scale ? Json(static_cast<int64_t>(whole)) : Json(scalar);
}

static Json cap(double value) { return value > 0 ? Json(value) : Json(); }

static Json config_v1(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = m.add_qkv_bias;
  return json;
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json.erase("hidden_act");
  json["hidden_activation"] = activation_name(m);
  json["attention_bias"] = m.add_qkv_bias;
  const auto head_dim = static_cast<double>(json.at("head_dim").get<int64_t>());
  const double scale = m.softmax_scale > 0 ? m.softmax_scale : 1 / std::sqrt(head_dim);
  json["query_pre_attn_scalar"] = to_query_scalar(scale);
  json["attn_logit_softcapping"] = cap(m.attn_logit_softcapping);
  json["final_logit_softcapping"] = cap(m.final_logit_softcapping);
  json["sliding_window"] = window_config(m);
  json["layer_types"] = layer_types(m);
  if (m.qk_layernorm) json["rope_parameters"] = rope_config_by_layer_type(m);
  return json;
}

}  // namespace gemma

const Family kGemma{"gemma", "GemmaForCausalLM", gemma::settings_v1, gemma::tensors_v1, gemma::config_v1};
const Family kGemma2{"gemma2", "Gemma2ForCausalLM", gemma::settings_v2, gemma::tensors, gemma::make_config};
const Family kGemma3{"gemma3_text", "Gemma3ForCausalLM", gemma::settings_v3, gemma::tensors, gemma::make_config};

}  // namespace metroplex::hf
