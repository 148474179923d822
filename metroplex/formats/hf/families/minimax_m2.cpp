// MiniMaxM2ForCausalLM: norms of queries and keys over all heads, rotation of a part of each head, and experts in all
// layers with sigmoid scores that are always normalized.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace minimax_m2 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"head_dim", 128},
                       {"max_position_embeddings", 196608},
                       {"rope_theta", 5e6},
                       {"num_local_experts", 256}});
  // Published files have the number of rotated channels.
  if (config.has("rotary_dim") && config.integer("head_dim") > 0)
    config.add_defaults({{"partial_rotary_factor", static_cast<double>(config.integer("rotary_dim")) /
                                                       static_cast<double>(config.integer("head_dim"))}});
  Settings settings = decoder_settings(config, Window::refused, PartialRope::read);
  add_biases(false, false, false, settings);
  // Keys of published files.
  config.require(config.flag("use_qk_norm", true), "use_qk_norm", "true");
  config.require(config.text("qk_norm_type", "per_layer") == "per_layer", "qk_norm_type", "per_layer");
  config.require(config.text("scoring_func", "sigmoid") == "sigmoid", "scoring_func", "sigmoid");
  config.require(config.flag("use_routing_bias", true), "use_routing_bias", "true");
  config.require(config.integer("shared_intermediate_size", 0) == 0, "shared_intermediate_size", "0");
  set(settings, "qk_layernorm", true);
  set(settings, "qk_layernorm_all_heads", true);
  set(settings, "num_moe_experts", config.integer("num_local_experts"));
  set(settings, "moe_router_topk", config.integer("num_experts_per_tok", 8));
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  set(settings, "moe_router_score_function", "sigmoid");
  set(settings, "moe_router_enable_expert_bias", true);
  set(settings, "moe_router_topk_normalization", "always");
  set(settings, "moe_input_jitter_eps", config.number("router_jitter_noise", 0));
  add_balancing(config, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.block = "block_sparse_moe",
                             .gate = "w1",
                             .up = "w3",
                             .down = "w2",
                             .expert_bias = "e_score_correction_bias"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["rope_parameters"]["partial_rotary_factor"] = m.rotary_percent;
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["router_jitter_noise"] = m.moe_input_jitter_eps;
  json["output_router_logits"] = false;
  return json;
}

}  // namespace minimax_m2

const Family kMiniMaxM2{"minimax_m2", "MiniMaxM2ForCausalLM", minimax_m2::settings, minimax_m2::tensors,
                        minimax_m2::make_config};

}  // namespace metroplex::hf
