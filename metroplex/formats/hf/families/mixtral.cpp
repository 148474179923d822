// MixtralForCausalLM, arXiv 2401.04088: experts in every layer, softmax over the selected experts.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace mixtral {

static Settings settings(const Json& given) {
  const Json json = add_defaults(given, {{"num_key_value_heads", 8},
                                         {"max_position_embeddings", 131072},
                                         {"rms_norm_eps", 1e-5},
                                         {"rope_theta", 1e6},
                                         {"num_local_experts", 8}});
  const ConfigReader config(json);
  Settings settings = decoder_settings(config, Window::declared);
  set(settings, "family", "mixtral");
  set(settings, "add_bias_linear", false);
  set(settings, "num_moe_experts", config.integer("num_local_experts"));
  set(settings, "moe_router_topk", config.integer("num_experts_per_tok", 2));
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  set(settings, "moe_input_jitter_eps", config.number("router_jitter_noise", 0));
  if (config.flag("output_router_logits", false))
    set(settings, "moe_aux_loss_coeff", config.number("router_aux_loss_coef", 0.001));
  return settings;
}

static bool holds(const config::Model& m) {
  return is_plain_decoder(m, Windows::allowed) && m.window_attn_skip_freq.empty() &&
         config::all_layers_have_experts(m) && !m.qk_layernorm && has_no_biases(m) &&
         m.moe_router_score_function == config::ScoreFunction::softmax && !m.moe_router_pre_softmax &&
         m.moe_router_num_groups == 0 && m.moe_router_topk_scaling_factor == 0;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["router_jitter_noise"] = m.moe_input_jitter_eps;
  json["output_router_logits"] = false;
  json["sliding_window"] = m.has_window() ? Json(m.window_size + 1) : Json();
  return json;
}

}  // namespace mixtral

const Family kMixtral{"mixtral",        "MixtralForCausalLM", mixtral::settings,
                      mixtral::tensors, mixtral::holds,       mixtral::make_config};

}  // namespace metroplex::hf
