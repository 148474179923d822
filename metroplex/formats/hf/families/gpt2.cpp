// GPT2LMHeadModel: learned positions, LayerNorm, biases everywhere, output layer tied to the embedding. Linear layers
// are stored as [in, out] (Conv1D), with queries, keys and values concatenated.
#include "hf/decoder.h"

#include "base/error.h"

namespace metroplex::hf {
namespace gpt2 {

struct Mapping {
  const config::Model& model;
  std::vector<MappedTensor> all = {};

  void whole(const std::string& ours, const std::string& theirs, const Dims& shape) {
    all.push_back({ours, shape, {whole_part(theirs, shape)}});
  }
  void add_transposed(const std::string& ours, const std::string& theirs, int64_t out, int64_t in) {
    all.push_back({ours, {out, in}, {{theirs, {in, out}, {0, 0}, {out, in}, 0, {1, out}}}});
  }
  // Ours: per head, the rows of its queries, keys and values. Theirs: all queries, then all keys, then all values.
  void qkv(const std::string& ours, const std::string& theirs) {
    const int64_t h = model.hidden_size, d = h / model.num_attention_heads;
    MappedTensor weight{ours + "weight", {3 * h, h}, {}}, bias{ours + "bias", {3 * h}, {}};
    for (int64_t head = 0; head < model.num_attention_heads; ++head) {
      for (int64_t which = 0; which < 3; ++which) {
        const int64_t row = (3 * head + which) * d, column = which * h + head * d;
        weight.parts.push_back({theirs + "weight", {h, 3 * h}, {row, 0}, {d, h}, column, {1, 3 * h}});
        bias.parts.push_back({theirs + "bias", {3 * h}, {row}, {d}, column, {1}});
      }
    }
    all.push_back(std::move(weight));
    all.push_back(std::move(bias));
  }
  void norm(const std::string& ours, const std::string& theirs) {
    for (const char* kind : {".weight", ".bias"}) whole(ours + kind, theirs + kind, {model.hidden_size});
  }
};

static Settings settings(ConfigReader& config) {
  Settings settings;
  const int64_t hidden = config.integer("n_embd");
  set(settings, "family", "gpt");
  set(settings, "num_layers", config.integer("n_layer"));
  set(settings, "hidden_size", hidden);
  set(settings, "num_attention_heads", config.integer("n_head"));
  set(settings, "ffn_hidden_size", config.integer("n_inner", 4 * hidden));
  set(settings, "vocab_size", config.integer("vocab_size"));
  set(settings, "max_position_embeddings", config.integer("n_positions", 1024));
  set(settings, "layernorm_epsilon", config.number("layer_norm_epsilon", 1e-5));
  set(settings, "position_embedding_type", "learned_absolute");
  set(settings, "normalization", "LayerNorm");
  set(settings, "add_bias_linear", true);
  set(settings, "gated_linear_unit", false);
  set(settings, "untie_embeddings_and_output_weights", !config.flag("tie_word_embeddings", true));
  add_activation(config, "activation_function", "gelu_new", settings);
  config.ignore({"n_ctx"});  // older files repeat n_positions
  config.require(config.flag("scale_attn_weights", true), "scale_attn_weights", "true");
  config.require(!config.flag("scale_attn_by_inverse_layer_idx", false), "scale_attn_by_inverse_layer_idx", "false");
  config.require(!config.flag("add_cross_attention", false), "add_cross_attention", "false");
  const double hidden_dropout = config.number("resid_pdrop", 0.1);
  config.require(config.number("embd_pdrop", 0.1) == hidden_dropout, "embd_pdrop", "the value of resid_pdrop");
  set(settings, "hidden_dropout", hidden_dropout);
  set(settings, "attention_dropout", config.number("attn_pdrop", 0.1));
  set(settings, "init_method_std", config.number("initializer_range", 0.02));
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  Mapping map{m};
  const int64_t h = m.hidden_size, f = m.ffn_hidden_size;
  map.whole("embedding.word_embeddings.weight", "transformer.wte.weight", {m.vocab_size, h});
  map.whole("embedding.position_embeddings.weight", "transformer.wpe.weight", {m.max_position_embeddings, h});
  for (int64_t i = 0; i < m.num_layers; ++i) {
    const std::string ours = base::concat("decoder.layers.", i, "."), theirs = base::concat("transformer.h.", i, ".");
    map.norm(ours + "input_layernorm", theirs + "ln_1");
    map.qkv(ours + "self_attention.linear_qkv.", theirs + "attn.c_attn.");
    map.add_transposed(ours + "self_attention.linear_proj.weight", theirs + "attn.c_proj.weight", h, h);
    map.whole(ours + "self_attention.linear_proj.bias", theirs + "attn.c_proj.bias", {h});
    map.norm(ours + "pre_mlp_layernorm", theirs + "ln_2");
    map.add_transposed(ours + "mlp.linear_fc1.weight", theirs + "mlp.c_fc.weight", f, h);
    map.whole(ours + "mlp.linear_fc1.bias", theirs + "mlp.c_fc.bias", {f});
    map.add_transposed(ours + "mlp.linear_fc2.weight", theirs + "mlp.c_proj.weight", h, f);
    map.whole(ours + "mlp.linear_fc2.bias", theirs + "mlp.c_proj.bias", {h});
  }
  map.norm("decoder.final_layernorm", "transformer.ln_f");
  if (m.untie_embeddings_and_output_weights) map.whole("output_layer.weight", "lm_head.weight", {m.vocab_size, h});
  return map.all;
}

static Json make_config(const config::Model& m) {
  return {{"n_layer", m.num_layers},
          {"n_embd", m.hidden_size},
          {"n_head", m.num_attention_heads},
          {"n_inner", m.ffn_hidden_size},
          {"n_positions", m.max_position_embeddings},
          {"vocab_size", m.vocab_size},
          {"layer_norm_epsilon", m.layernorm_epsilon},
          {"activation_function", activation_name(m)},
          {"tie_word_embeddings", !m.untie_embeddings_and_output_weights},
          {"initializer_range", m.init_method_std},
          {"embd_pdrop", m.hidden_dropout},
          {"resid_pdrop", m.hidden_dropout},
          {"attn_pdrop", m.attention_dropout},
          {"use_cache", true}};
}

}  // namespace gpt2

const Family kGpt2{"gpt2", "GPT2LMHeadModel", gpt2::settings, gpt2::tensors, gpt2::make_config};

}  // namespace metroplex::hf
