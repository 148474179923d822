// GptOssForCausalLM, arXiv 2508.10925: attention sinks, windows in every other layer, biases everywhere, experts with
// clamped activations.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace gpt_oss {

static void add_defaults(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"head_dim", 64},
                       {"rms_norm_eps", 1e-5},
                       {"sliding_window", 128},
                       {"num_local_experts", 128},
                       {"num_experts_per_tok", 4},
                       {"swiglu_limit", 7.0},
                       {"swiglu_alpha", 1.702},
                       {"max_position_embeddings", 131072},
                       {"rope_theta", 150000.0}});
  if (config.has("rope_parameters") || config.has("rope_scaling")) return;
  config.replace("rope_scaling", {{"rope_type", "yarn"},
                                  {"factor", 32.0},
                                  {"beta_fast", 32.0},
                                  {"beta_slow", 1.0},
                                  {"truncate", false},
                                  {"original_max_position_embeddings", 4096}});
}

static Settings settings(ConfigReader& config) {
  add_defaults(config);
  Settings settings = sizes_and_positions(config);
  add_heads(config, settings);
  const std::string act = config.text("hidden_act", "silu");
  config.require(act == "silu", "hidden_act", "silu");
  config.require(config.flag("attention_bias", true), "attention_bias", "true");
  config.require(config.number("swiglu_alpha", 1.702) == 1.702, "swiglu_alpha", "1.702");
  config.ignore({"initial_context_length", "experts_per_token"});  // published names of keys that are also present
  std::vector<bool> slides;
  for (int64_t i = 0; i < num_layers(config); ++i) slides.push_back(i % 2 == 0);
  add_windows(config, slides, settings);
  set(settings, "add_bias_linear", true);
  set(settings, "activation", "quick_gelu");
  set(settings, "activation_func_clamp_value", config.number("swiglu_limit", 7.0));
  set(settings, "glu_linear_offset", 1.0);
  set(settings, "softmax_type", "learnable");
  set(settings, "num_moe_experts", config.integer("num_local_experts"));
  add_chosen_softmax(config.integer("num_experts_per_tok"), settings);
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  add_balancing(config, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.experts = DecoderNames::Experts::interleaved_columns, .router = "router"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = true;
  json["hidden_act"] = "silu";
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["swiglu_limit"] = m.activation_func_clamp_value;
  json["swiglu_alpha"] = 1.702;
  json["sliding_window"] = window_config(m);
  json["layer_types"] = layer_types(m);
  json["output_router_logits"] = false;
  return json;
}

}  // namespace gpt_oss

const Family kGptOss{"gpt_oss", "GptOssForCausalLM", gpt_oss::settings, gpt_oss::tensors, gpt_oss::make_config};

}  // namespace metroplex::hf
