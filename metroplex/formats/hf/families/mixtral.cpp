// MixtralForCausalLM, arXiv 2401.04088: experts in every layer, softmax over the selected experts.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace mixtral {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 1e6},
                       {"num_local_experts", 8}});
  Settings settings = decoder_settings(config, Window::declared);
  add_biases(false, false, false, settings);
  set(settings, "num_moe_experts", config.integer("num_local_experts"));
  add_chosen_softmax(config.integer("num_experts_per_tok", 2), settings);
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  set(settings, "moe_input_jitter_eps", config.number("router_jitter_noise", 0));
  add_balancing(config, settings);
  return settings;
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
  json["sliding_window"] = window_config(m);
  return json;
}

}  // namespace mixtral

const Family kMixtral{"mixtral", "MixtralForCausalLM", mixtral::settings, mixtral::tensors, mixtral::make_config};

}  // namespace metroplex::hf
