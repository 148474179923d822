// NemotronHForCausalLM, arXiv 2504.03624: each layer has one sublayer, which is Mamba-2, attention without positions,
// an MLP or experts. The experts have the routing of deepseek_v3.
#include "hf/decoder.h"

#include "config/experts.h"
#include "config/layer_parts.h"

namespace metroplex::hf {
namespace nemotron_h {

struct LayerType {
  config::Sublayer ours;
  const char *theirs, *older;
};
constexpr LayerType kTypes[] = {{config::Sublayer::mamba, "linear_attention", "mamba"},
                                {config::Sublayer::attention, "full_attention", "attention"},
                                {config::Sublayer::mlp, "mlp", "mlp"},
                                {config::Sublayer::experts, "moe", "moe"}};

static const DecoderNames& names() {
  static const DecoderNames kNames{.model = "backbone",
                                   .embedding = "embeddings",
                                   .final_norm = "norm_f",
                                   .attention = "mixer",
                                   .mlp = "mixer",
                                   .input_norm = "norm",
                                   .mlp_input_norm = "norm",
                                   .block = "mixer"};
  return kNames;
}

// From layers_block_type, or from hybrid_override_pattern of older files, which has our symbols.
static std::string read_layer_pattern(const ConfigReader& config) {
  if (!config.has("layers_block_type") && !config.has("layer_types")) {
    const std::string pattern = config.text("hybrid_override_pattern", "");
    config.require(!pattern.empty() && pattern.find_first_not_of("M*-E") == std::string::npos,
                   "hybrid_override_pattern", "one symbol of M*-E per layer, or layers_block_type");
    return pattern;
  }
  config.ignore({"hybrid_override_pattern"});
  const char* const key = config.has("layers_block_type") ? "layers_block_type" : "layer_types";
  const Json& list = config.value(key);
  config.require(list.is_array() && !list.empty(), key, "a list with one word per layer");
  std::string pattern;
  for (const Json& word : list) {
    for (const LayerType& type : kTypes)
      if (word == type.theirs || word == type.older) pattern += static_cast<char>(type.ours);
  }
  config.require(pattern.size() == list.size(), key, "a list of linear_attention, full_attention, mlp and moe");
  return pattern;
}

static void add_experts(const ConfigReader& config, Settings& settings) {
  set(settings, "num_moe_experts", config.integer("n_routed_experts", 8));
  set(settings, "moe_router_topk", config.integer("num_experts_per_tok", 2));
  set(settings, "moe_ffn_hidden_size", config.integer("moe_intermediate_size", 7688));
  config.require(config.integer("n_shared_experts", 1) == 1, "n_shared_experts", "1");
  set(settings, "moe_shared_expert_intermediate_size", config.integer("moe_shared_expert_intermediate_size", 7688));
  set(settings, "moe_router_topk_scaling_factor", config.number("routed_scaling_factor", 1.0));
  set(settings, "moe_latent_size", config.integer_or_null("moe_latent_size", 0));
  add_sigmoid_routing(config, 1, 1, settings);
}

static Settings settings(ConfigReader& config) {
  const std::string pattern = read_layer_pattern(config);
  config.require(config.integer("num_hidden_layers", static_cast<int64_t>(pattern.size())) ==
                     static_cast<int64_t>(pattern.size()),
                 "num_hidden_layers", "the number of layers in the pattern");
  config.add_defaults({{"num_hidden_layers", pattern.size()},
                       {"hidden_size", 4096},
                       {"vocab_size", 131072},
                       {"num_attention_heads", 32},
                       {"num_key_value_heads", 8},
                       {"head_dim", 128},
                       {"intermediate_size", 21504},
                       {"layer_norm_epsilon", 1e-5},
                       {"max_position_embeddings", 4096}});
  Settings settings = sizes_and_positions(config, PartialRope::refused, "layer_norm_epsilon");
  add_activation(config, "mlp_hidden_act", "relu2", settings);
  add_heads(config, settings);
  add_window(config, Window::refused, settings);
  config.require(!config.flag("attention_bias", false), "attention_bias", "false");
  add_biases(false, false, config.flag("mlp_bias", false), settings);
  set(settings, "position_embedding_type", "none");
  set(settings, "gated_linear_unit", false);
  set(settings, "hybrid_layer_pattern", pattern);
  set(settings, "mamba_num_heads", config.integer("mamba_num_heads", 128));
  set(settings, "mamba_head_dim", config.integer("mamba_head_dim", 64));
  set(settings, "mamba_num_groups", config.integer("n_groups", 8));
  set(settings, "mamba_state_dim", config.integer("ssm_state_size", 128));
  set(settings, "mamba_proj_bias", config.flag("use_bias", false));
  set(settings, "mamba_dt_min", config.number("time_step_min", 0.001));
  add_mamba(config, "mamba_hidden_act", 128, settings);
  const bool experts = pattern.find('E') != std::string::npos;
  if (experts) add_experts(config, settings);
  config.require(config.integer("num_nextn_predict_layers", 0) == 0, "num_nextn_predict_layers", "0");
  set(settings, "hidden_dropout", config.number("hidden_dropout", 0.0));
  // Keys that transformers does not read, initial values, and the kernels and the cache of transformers.
  config.ignore({"expand", "mamba_proj_bias", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
                 "mtp_hybrid_override_pattern", "mtp_layers_block_type", "num_logits_to_keep",
                 "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_limit",
                 "time_step_max", "use_mamba_kernels"});
  if (!experts)
    config.ignore({"moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size", "n_group",
                   "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",
                   "routed_scaling_factor", "topk_group"});
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, names()); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  for (const char* const key : {"rms_norm_eps", "hidden_act", "rope_parameters", "num_hidden_layers"})
    json.erase(key);
  json["layer_norm_epsilon"] = m.layernorm_epsilon;
  json["mlp_hidden_act"] = activation_name(m);
  json["layers_block_type"] = Json::array();
  const bool other = m.hybrid_layer_pattern.empty();
  for (const char symbol : other ? std::string(static_cast<size_t>(m.num_layers), '*') : m.hybrid_layer_pattern) {
    for (const LayerType& type : kTypes)
      if (symbol == static_cast<char>(type.ours)) json["layers_block_type"].push_back(type.theirs);
  }
  json["attention_bias"] = false;
  json["mlp_bias"] = m.mlp_bias();
  json["hidden_dropout"] = m.hidden_dropout;
  json["mamba_num_heads"] = config::mamba_heads(m);
  json["mamba_head_dim"] = m.mamba_head_dim;
  json["n_groups"] = m.mamba_num_groups;
  json["ssm_state_size"] = m.mamba_state_dim;
  json["mamba_hidden_act"] = "silu";
  json["use_bias"] = m.mamba_proj_bias;
  json["time_step_min"] = m.mamba_dt_min;
  json["num_nextn_predict_layers"] = 0;
  add_mamba_config(m, json);
  if (!m.has_experts()) return json;
  add_shared_experts_config(m, json);
  json.erase("first_k_dense_replace");
  json["n_shared_experts"] = 1;
  json["moe_shared_expert_intermediate_size"] = std::max<int64_t>(1, m.moe_shared_expert_intermediate_size);
  json["norm_topk_prob"] = normalizes_topk(m);
  json["moe_latent_size"] = m.moe_latent_size > 0 ? Json(m.moe_latent_size) : Json();
  return json;
}

}  // namespace nemotron_h

const Family kNemotronH{"nemotron_h", "NemotronHForCausalLM", nemotron_h::settings, nemotron_h::tensors,
                        nemotron_h::make_config};

}  // namespace metroplex::hf
