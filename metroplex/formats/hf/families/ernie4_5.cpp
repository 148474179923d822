// Ernie4_5ForCausalLM and Ernie4_5_MoeForCausalLM: rotation of neighboring channels. The dense model has a bias in
// all linear layers or in none. The experts are chosen by a softmax over all plus a bias; their weights are a softmax
// over the chosen.
#include "hf/decoder.h"

#include <algorithm>

#include "config/experts.h"

namespace metroplex::hf {
namespace ernie4_5 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 2},
                       {"head_dim", 128},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 500000.0},
                       {"tie_word_embeddings", true}});
  Settings settings = decoder_settings(config, Window::refused);
  const bool biases = config.flag("use_bias", false);
  add_biases(biases, biases, biases, settings);
  set(settings, "rotary_interleaved", true);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json["use_bias"] = m.output_bias();
  return json;
}

static Settings moe_settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 4},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 500000.0},
                       {"tie_word_embeddings", true}});
  Settings settings = decoder_settings(config, Window::refused);
  config.require(!config.flag("use_bias", false), "use_bias", "false");  // the output layer would have one
  // A sum of scores below this is replaced by it. The scores of chosen experts sum to more.
  config.require(config.number("moe_norm_min", 1e-12) <= 1e-6, "moe_norm_min", "at most 1e-6");
  add_biases(false, false, false, settings);
  set(settings, "rotary_interleaved", true);
  const int64_t layers = num_layers(config), interval = config.integer("moe_layer_interval", 1);
  const int64_t first = config.integer("moe_layer_start_index", 1), end = config.integer("moe_layer_end_index", -1);
  config.require(interval > 0, "moe_layer_interval", "a number above 0");
  std::vector<bool> pattern;
  for (int64_t i = 0; i < layers; ++i)
    pattern.push_back((i + 1) % interval == 0 && i >= first && (end == -1 || i <= end));
  const int64_t width = config.integer("moe_intermediate_size", 1536);
  set(settings, "num_moe_experts", config.integer("moe_num_experts", 64));
  set(settings, "moe_layer_freq", layer_pattern(pattern));
  set(settings, "moe_router_topk", config.integer("moe_k", 6));
  set(settings, "moe_ffn_hidden_size", width);
  set(settings, "moe_shared_expert_intermediate_size", width * config.integer_or_null("moe_num_shared_experts", 2));
  set(settings, "moe_router_enable_expert_bias", true);
  add_balancing(config, settings);
  return settings;
}

static std::vector<MappedTensor> moe_tensors(const config::Model& m) {
  return decoder_tensors(m, {.expert_bias = "moe_statics.e_score_correction_bias", .expert_bias_rows = true});
}

static Json moe_config(const config::Model& m) {
  Json json = make_config(m);
  const std::vector<bool> experts = config::moe_layers(m);
  const auto first = std::find(experts.begin(), experts.end(), true);
  const auto last = std::find(experts.rbegin(), experts.rend(), true);
  const auto next = first == experts.end() ? first : std::find(first + 1, experts.end(), true);
  const int64_t width = config::expert_ffn_width(m);
  json["moe_layer_start_index"] = first - experts.begin();
  json["moe_layer_end_index"] = experts.rend() - last - 1;
  json["moe_layer_interval"] = next == experts.end() ? 1 : next - first;
  json["moe_num_experts"] = m.num_moe_experts;
  json["moe_k"] = m.moe_router_topk;
  json["moe_intermediate_size"] = width;
  json["moe_num_shared_experts"] = m.moe_shared_expert_intermediate_size / width;
  json["moe_norm_min"] = 1e-12;
  json["output_router_logits"] = false;
  return json;
}

}  // namespace ernie4_5

const Family kErnie45{"ernie4_5", "Ernie4_5ForCausalLM", ernie4_5::settings, ernie4_5::tensors,
                      ernie4_5::make_config};
const Family kErnie45Moe{"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", ernie4_5::moe_settings, ernie4_5::moe_tensors,
                         ernie4_5::moe_config};

}  // namespace metroplex::hf
