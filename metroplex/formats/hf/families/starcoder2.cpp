// Starcoder2ForCausalLM, arXiv 2402.19173: LayerNorm, an MLP without a gate, a bias in all linear layers or in none.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace starcoder2 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 2},
                       {"max_position_embeddings", 4096},
                       {"norm_epsilon", 1e-5},
                       {"initializer_range", 0.018042},
                       {"tie_word_embeddings", true}});
  Settings settings = sizes_and_positions(config, PartialRope::refused, "norm_epsilon");
  add_activation(config, "hidden_act", "gelu_pytorch_tanh", settings);
  add_heads(config, settings);
  add_window(config, Window::declared, settings);
  // Published files repeat keys of an older class, which transformers ignores.
  config.ignore({"activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
                 "scale_attention_softmax_in_fp32", "scale_attn_weights"});
  const bool biases = config.flag("use_bias", true);
  add_biases(biases, biases, biases, settings);
  set(settings, "normalization", "LayerNorm");
  set(settings, "gated_linear_unit", false);
  const double dropout = config.number("residual_dropout", 0.0);
  config.require(config.number("embedding_dropout", 0.0) == dropout, "embedding_dropout",
                 "the value of residual_dropout");
  set(settings, "hidden_dropout", dropout);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.mlp_up = "c_fc", .mlp_down = "c_proj"});
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json.erase("rms_norm_eps");
  json["norm_epsilon"] = m.layernorm_epsilon;
  json["sliding_window"] = window_config(m);
  json["use_bias"] = m.output_bias();
  json["residual_dropout"] = json["embedding_dropout"] = m.hidden_dropout;
  return json;
}

}  // namespace starcoder2

const Family kStarcoder2{"starcoder2", "Starcoder2ForCausalLM", starcoder2::settings, starcoder2::tensors,
                         starcoder2::make_config};

}  // namespace metroplex::hf
