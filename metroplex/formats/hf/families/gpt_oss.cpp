// GptOssForCausalLM, arXiv 2508.10925: attention sinks, windows in every other layer, biases everywhere, experts with
// clamped activations.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace gpt_oss {

static Json add_hf_defaults(const Json& json) {
  Json defaults{{"num_key_value_heads", 8}, {"head_dim", 64},           {"rms_norm_eps", 1e-5},
                {"sliding_window", 128},    {"num_local_experts", 128}, {"num_experts_per_tok", 4},
                {"swiglu_limit", 7.0},      {"swiglu_alpha", 1.702},    {"max_position_embeddings", 131072},
                {"rope_theta", 150000.0}};
  const auto missing = [&](const char* key) { return !json.contains(key) || json[key].is_null(); };
  if (missing("rope_parameters") && missing("rope_scaling")) {
    defaults["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0},
                                {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                {"truncate", false},   {"original_max_position_embeddings", 4096}};
  }
  Json all = add_defaults(json, defaults);
  if (defaults.contains("rope_scaling")) all["rope_scaling"] = defaults["rope_scaling"];  // replaces null
  return all;
}

static Settings settings(const Json& given) {
  const Json json = add_hf_defaults(given);
  const ConfigReader config(json);
  Settings settings = sizes_and_positions(config);
  add_heads(config, settings);
  const std::string act = config.text("hidden_act", "silu");
  config.require(act == "silu", "hidden_act", "silu");
  config.require(config.flag("attention_bias", true), "attention_bias", "true");
  config.require(config.number("swiglu_alpha", 1.702) == 1.702, "swiglu_alpha", "1.702");
  std::vector<bool> slides;
  for (int64_t i = 0; i < num_layers(config); ++i) slides.push_back(i % 2 == 0);
  add_windows(config, slides, settings);
  set(settings, "family", "gpt");
  set(settings, "add_bias_linear", true);
  set(settings, "activation", "quick_gelu");
  set(settings, "activation_func_clamp_value", config.number("swiglu_limit", 7.0));
  set(settings, "glu_linear_offset", 1.0);
  set(settings, "softmax_type", "learnable");
  set(settings, "num_moe_experts", config.integer("num_local_experts"));
  set(settings, "moe_router_topk", config.integer("num_experts_per_tok"));
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  if (config.flag("output_router_logits", false))
    set(settings, "moe_aux_loss_coeff", config.number("router_aux_loss_coef", 0.001));
  return settings;
}

static bool holds(const config::Model& m) {
  return m.normalization == config::Normalization::RMSNorm &&
         m.position_embedding_type == config::PositionEmbedding::rope && m.rotary_percent == 1 &&
         !m.rotary_interleaved && m.rotary_base_local == 0 && !m.multi_latent_attention && m.gated_linear_unit &&
         m.activation == config::Activation::quick_gelu && m.glu_linear_offset == 1 &&
         m.activation_func_clamp_value > 0 && m.softmax_type == config::SoftmaxType::learnable &&
         m.softmax_scale == 0 && m.attn_logit_softcapping == 0 && m.final_logit_softcapping == 0 &&
         !m.scale_embeddings && !m.apply_layernorm_1p && !m.sandwich_norm && m.add_bias_linear && !m.qk_layernorm &&
         config::all_layers_have_experts(m) && m.moe_router_score_function == config::ScoreFunction::softmax &&
         !m.moe_router_pre_softmax && m.moe_router_num_groups == 0 && m.moe_router_topk_scaling_factor == 0 &&
         m.moe_shared_expert_intermediate_size == 0;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.qkv_bias = true, .output_bias = true, .router = "router", .joined_experts = true});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["attention_bias"] = true;
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["swiglu_limit"] = m.activation_func_clamp_value;
  json["swiglu_alpha"] = 1.702;
  json["sliding_window"] = m.has_window() ? Json(m.window_size + 1) : Json();
  json["layer_types"] = layer_types(m);
  json["output_router_logits"] = false;
  return json;
}

}  // namespace gpt_oss

const Family kGptOss{"gpt_oss",        "GptOssForCausalLM", gpt_oss::settings,
                     gpt_oss::tensors, gpt_oss::holds,      gpt_oss::make_config};

}  // namespace metroplex::hf
