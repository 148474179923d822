// Routing of config.json that several families share.
#include "hf/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "config/experts.h"

namespace metroplex::hf {

void add_balancing(const ConfigReader& config, Settings& settings) {
  if (config.flag("output_router_logits", false))
    set(settings, "moe_aux_loss_coeff", config.number("router_aux_loss_coef", 0.001));
}

void add_chosen_softmax(int64_t topk, Settings& settings) {
  set(settings, "moe_router_topk", topk);
  if (topk != 1) return;
  set(settings, "moe_router_score_function", "sigmoid");
  set(settings, "moe_router_topk_normalization", "always");
}

std::string sparse_layers(const ConfigReader& config) {
  const int64_t step = config.integer("decoder_sparse_step", 1);
  config.require(step > 0, "decoder_sparse_step", "a number above 0");
  std::vector<int64_t> dense;
  if (config.has("mlp_only_layers")) {
    const Json& list = config.value("mlp_only_layers");
    const bool numbers = list.is_array() && std::all_of(list.begin(), list.end(),
                                                        [](const Json& layer) { return layer.is_number_integer(); });
    config.require(numbers, "mlp_only_layers", "a list of layers");
    dense = list.get<std::vector<int64_t>>();
  }
  std::vector<bool> layers;
  for (int64_t i = 0; i < num_layers(config); ++i)
    layers.push_back((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end());
  return layer_pattern(layers);
}

void add_sparse_config(const config::Model& m, Json& json) {
  const std::vector<bool> experts = config::moe_layers(m);
  Json dense = Json::array();
  for (size_t i = 0; i < experts.size(); ++i) {
    if (!experts[i]) dense.push_back(i);
  }
  json["num_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["moe_intermediate_size"] = config::expert_ffn_width(m);
  json["norm_topk_prob"] = !m.moe_router_pre_softmax;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense;
  json["output_router_logits"] = false;
}

bool add_shared_experts(const ConfigReader& config, const SharedExpertDefaults& defaults, Settings& settings) {
  const int64_t layers = num_layers(config);
  const int64_t dense = config.integer("first_k_dense_replace", defaults.first_dense);
  const int64_t experts = config.integer_or_null("n_routed_experts", defaults.experts);
  const int64_t topk = config.integer("num_experts_per_tok", defaults.topk);
  const int64_t width = config.integer("moe_intermediate_size", defaults.width);
  const int64_t shared = config.integer_or_null("n_shared_experts", defaults.shared);
  const double scaling = config.number("routed_scaling_factor", defaults.scaling);
  config.require(config.integer("moe_layer_freq", 1) == 1, "moe_layer_freq", "1");
  config.ignore({"n_group", "topk_group", "topk_method", "scoring_func", "norm_topk_prob"});
  if (experts == 0 || dense >= layers) return false;
  std::vector<bool> pattern;
  for (int64_t i = 0; i < layers; ++i) pattern.push_back(i >= dense);
  set(settings, "num_moe_experts", experts);
  set(settings, "moe_layer_freq", layer_pattern(pattern));
  set(settings, "moe_router_topk", topk);
  set(settings, "moe_ffn_hidden_size", width);
  set(settings, "moe_shared_expert_intermediate_size", width * shared);
  set(settings, "moe_router_topk_scaling_factor", scaling);
  return true;
}

void add_group_routing(const ConfigReader& config, int64_t groups, int64_t chosen, int64_t best, Settings& settings) {
  groups = config.integer("n_group", groups), chosen = config.integer("topk_group", chosen);
  MPX_CHECK(groups > 0, "hf", "config.json: n_group = ", groups, ": must be above 0; correct it");
  MPX_CHECK(0 < chosen && chosen <= groups, "hf", "config.json: topk_group = ", chosen,
            ": must be from 1 to n_group (", groups, "); correct it");
  if (groups <= 1 || chosen >= groups) return;
  set(settings, "moe_router_num_groups", groups);
  set(settings, "moe_router_group_topk", chosen);
  set(settings, "moe_router_group_score_topk", best);
}

void add_sigmoid_routing(const ConfigReader& config, int64_t groups, int64_t chosen, Settings& settings) {
  const std::string scoring = config.text("scoring_func", "sigmoid"), method = config.text("topk_method", "noaux_tc");
  config.require(scoring == "sigmoid", "scoring_func", "sigmoid");
  config.require(method == "noaux_tc", "topk_method", "noaux_tc");
  set(settings, "moe_router_score_function", "sigmoid");
  set(settings, "moe_router_enable_expert_bias", true);
  set(settings, "moe_router_topk_normalization", config.flag("norm_topk_prob", true) ? "always" : "never");
  add_group_routing(config, groups, chosen, 2, settings);
}

void add_multi_token(const ConfigReader& config, int64_t otherwise, Settings& settings) {
  const int64_t ahead = config.integer("num_nextn_predict_layers", otherwise);
  config.require(ahead >= 0 && ahead <= kMaxMultiToken, "num_nextn_predict_layers", "0 to 64");
  set(settings, "mtp_num_layers", ahead);
}

void add_softmax_experts(const ConfigReader& config, int64_t experts, const std::string& layers, bool normalized,
                         Settings& settings) {
  const int64_t count = config.integer("num_experts", config.integer("num_local_experts", experts)),
                width = config.integer("moe_intermediate_size"), topk = config.integer("num_experts_per_tok");
  if (count == 0 || layers.find('1') == std::string::npos) return config.ignore({"output_router_logits"});
  set(settings, "num_moe_experts", count);
  set(settings, "moe_ffn_hidden_size", width);
  set(settings, "moe_layer_freq", layers);
  if (normalized) {
    add_chosen_softmax(topk, settings);
  } else {
    set(settings, "moe_router_topk", topk);
    set(settings, "moe_router_pre_softmax", true);
  }
  add_balancing(config, settings);
}

// Returns the number of leading dense layers.
static int64_t dense_layers(const config::Model& m) {
  if (!m.has_experts()) return m.num_layers;
  const std::vector<bool> experts = config::moe_layers(m);
  return std::find(experts.begin(), experts.end(), true) - experts.begin();
}

bool normalizes_topk(const config::Model& m) {
  using config::TopkNormalization;
  const TopkNormalization declared = m.moe_router_topk_normalization;
  return declared == TopkNormalization::always || (declared == TopkNormalization::automatic && m.moe_router_topk > 1);
}

void add_shared_experts_config(const config::Model& m, Json& json) {
  json["first_k_dense_replace"] = dense_layers(m);
  if (!m.has_experts()) return;
  const int64_t width = config::expert_ffn_width(m);
  json["n_routed_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["moe_intermediate_size"] = width;
  json["n_shared_experts"] = m.moe_shared_expert_intermediate_size / width;
  json["routed_scaling_factor"] = m.moe_router_topk_scaling_factor > 0 ? m.moe_router_topk_scaling_factor : 1.0;
  json["n_group"] = std::max<int64_t>(1, m.moe_router_num_groups);
  json["topk_group"] = std::max<int64_t>(1, m.moe_router_group_topk);
}

}  // namespace metroplex::hf
