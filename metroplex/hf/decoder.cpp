#include "hf/decoder.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "config/experts.h"

namespace metroplex::hf {
namespace {

std::string where(const char* key) { return base::concat("config.json: ", key); }

int64_t heads_of(const config::Model& m) { return m.num_attention_heads; }
int64_t groups_of(const config::Model& m) { return m.num_query_groups > 0 ? m.num_query_groups : heads_of(m); }
int64_t head_dim_of(const config::Model& m) {
  return m.kv_channels > 0 ? m.kv_channels : m.hidden_size / heads_of(m);
}

Dims row_major(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

void add_yarn(const ConfigReader& config, const ConfigReader& said, Settings& settings) {
  const int64_t positions = config.integer("max_position_embeddings", 2048);
  const int64_t before = said.integer("original_max_position_embeddings", positions);
  set(settings, "rotary_scaling_factor",
      said.number("factor", static_cast<double>(positions) / static_cast<double>(std::max<int64_t>(1, before))));
  set(settings, "original_max_position_embeddings", before);
  set(settings, "beta_fast", said.number("beta_fast", 32.0));
  set(settings, "beta_slow", said.number("beta_slow", 1.0));
  set(settings, "yarn_correction_range_round_to_int", said.flag("truncate", true));
  // Only with both of them theirs reads mscale; mscale_all_dim alone sharpens latent attention.
  const double mscale = said.number("mscale", 0.0), all_dim = said.number("mscale_all_dim", 0.0);
  const bool both = mscale != 0 && all_dim != 0;
  set(settings, "mscale", both ? mscale : 1.0);
  set(settings, "mscale_all_dim", all_dim);
  if (said.has("attention_factor")) set(settings, "yarn_attention_factor", said.number("attention_factor", 1.0));
  else if (!both && all_dim != 0)
    set(settings, "yarn_attention_factor", 0.1 * std::log(said.number("factor", 1.0)) + 1.0);
}

// Rotary positions: `rope_parameters` of version 5; `rope_theta` and `rope_scaling` of version 4.
void add_rope(const ConfigReader& config, Settings& settings) {
  const Json none = Json::object();
  const char* const key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json& rope = config.has(key) ? config.json().at(key) : none;
  const ConfigReader said(rope);
  const std::string type = said.text("rope_type", said.text("type", "default"));
  set(settings, "position_embedding_type", "rope");
  set(settings, "rotary_base", said.number("rope_theta", config.number("rope_theta", 10000.0)));
  set(settings, "rotary_percent", said.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)));
  MPX_CHECK(type == "default" || type == "llama3" || type == "yarn" || type == "linear", "hf", where(key),
            " says rope_type ", type, ", which is not built here; default, linear, llama3 and yarn are");
  set(settings, "rope_type", type == "yarn" ? "yarn" : "rope");
  if (type == "default") return;
  if (type == "linear") return set(settings, "rotary_seq_len_interpolation_factor", said.number("factor", 1.0));
  if (type == "yarn") return add_yarn(config, said, settings);
  set(settings, "use_rope_scaling", true);
  set(settings, "rope_scaling_factor", said.number("factor", 8.0));
  set(settings, "rope_scaling_low_freq_factor", said.number("low_freq_factor", 1.0));
  set(settings, "rope_scaling_high_freq_factor", said.number("high_freq_factor", 4.0));
  set(settings, "rope_scaling_original_max_position_embeddings",
      said.integer("original_max_position_embeddings", 8192));
}

struct Layer {
  const config::Model& model;
  const DecoderNames& names;
  std::string ours, theirs;  // "decoder.layers.0.", "model.layers.0."
  std::vector<MappedTensor>& out;

  void whole(const std::string& our_name, const std::string& their_name, const Dims& shape) const {
    out.push_back({ours + our_name, shape, {whole_part(theirs + their_name, shape)}});
  }
  // Of each query group the rows of its queries, then of its key and its value; theirs are three tensors.
  void qkv(const char* kind) const {
    const bool bias = std::string(kind) == "bias";
    const int64_t groups = groups_of(model), d = head_dim_of(model), queries = heads_of(model) / groups * d;
    const int64_t h = model.hidden_size, rows = groups * (queries + 2 * d);
    const auto dims = [&](int64_t first) { return bias ? Dims{first} : Dims{first, h}; };
    const auto at = [&](int64_t first) { return bias ? Dims{first} : Dims{first, 0}; };
    MappedTensor tensor{ours + "self_attention.linear_qkv." + kind, dims(rows), {}};
    const auto name = [&](const char* which) { return theirs + "self_attn." + which + "_proj." + kind; };
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = g * (queries + 2 * d);
      tensor.parts.push_back(rows_part(name("q"), dims(groups * queries), at(row), dims(queries), g * queries));
      tensor.parts.push_back(rows_part(name("k"), dims(groups * d), at(row + queries), dims(d), g * d));
      tensor.parts.push_back(rows_part(name("v"), dims(groups * d), at(row + queries + d), dims(d), g * d));
    }
    out.push_back(std::move(tensor));
  }
  // The MLP <block> of inner width f.
  void gated(const std::string& block, int64_t f, const char* kind) const {
    const bool bias = std::string(kind) == "bias";
    const int64_t h = model.hidden_size;
    const auto dims = [&](int64_t first) { return bias ? Dims{first} : Dims{first, h}; };
    MappedTensor tensor{ours + block + ".linear_fc1." + kind, dims(2 * f), {}};
    for (const char* which : {".gate_proj.", ".up_proj."}) {
      const int64_t row = tensor.parts.empty() ? 0 : f;
      tensor.parts.push_back(
          rows_part(theirs + block + which + kind, dims(f), bias ? Dims{row} : Dims{row, 0}, dims(f), 0));
    }
    out.push_back(std::move(tensor));
  }
  void mlp(const std::string& block, int64_t width) const {
    const int64_t h = model.hidden_size;
    gated(block, width, "weight");
    if (names.mlp_bias) gated(block, width, "bias");
    whole(block + ".linear_fc2.weight", block + ".down_proj.weight", {h, width});
    if (names.mlp_bias) whole(block + ".linear_fc2.bias", block + ".down_proj.bias", {h});
  }
  void experts() const {
    const int64_t f = config::expert_ffn_width(model), h = model.hidden_size, count = model.num_moe_experts;
    whole("mlp.router.weight", names.block + ".gate.weight", {count, h});
    if (!names.expert_bias.empty()) {
      whole("mlp.router.expert_bias", names.expert_bias, {count});
      out.back().kind = "buffer";
    }
    MappedTensor one{ours + "mlp.experts.linear_fc1.weight", {count, 2 * f, h}, {}},
        two{ours + "mlp.experts.linear_fc2.weight", {count, h, f}, {}};
    for (int64_t e = 0; e < count; ++e) {
      const std::string expert = base::concat(theirs, names.block, ".experts.", e, ".");
      one.parts.push_back(rows_part(expert + names.gate + ".weight", {f, h}, {e, 0, 0}, {1, f, h}, 0));
      one.parts.push_back(rows_part(expert + names.up + ".weight", {f, h}, {e, f, 0}, {1, f, h}, 0));
      two.parts.push_back(rows_part(expert + names.down + ".weight", {h, f}, {e, 0, 0}, {1, h, f}, 0));
    }
    out.push_back(std::move(one));
    out.push_back(std::move(two));
    const int64_t shared = model.moe_shared_expert_intermediate_size;
    if (shared > 0) mlp("mlp.shared_experts", shared);
  }
  // Queries and keys/values through latents; the parts of a head, and the latent and the rotated key, lie as ours.
  void latent_attention() const {
    const config::Model& m = model;
    const int64_t h = m.hidden_size, n = heads_of(m), qk = m.qk_head_dim + m.qk_pos_emb_head_dim;
    const auto linear = [&](const std::string& name, const std::string& their_name, int64_t rows, int64_t in,
                            bool bias) {
      whole("self_attention." + name + ".weight", "self_attn." + their_name + ".weight", {rows, in});
      if (bias) whole("self_attention." + name + ".bias", "self_attn." + their_name + ".bias", {rows});
    };
    if (m.q_lora_rank > 0) {
      linear("linear_q_down_proj", "q_a_proj", m.q_lora_rank, h, names.qkv_bias);
      whole("self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight", {m.q_lora_rank});
      linear("linear_q_up_proj", "q_b_proj", n * qk, m.q_lora_rank, false);
    } else {
      linear("linear_q_proj", "q_proj", n * qk, h, false);
    }
    linear("linear_kv_down_proj", "kv_a_proj_with_mqa", m.kv_lora_rank + m.qk_pos_emb_head_dim, h, names.qkv_bias);
    whole("self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight", {m.kv_lora_rank});
    linear("linear_kv_up_proj", "kv_b_proj", n * (m.qk_head_dim + m.v_head_dim), m.kv_lora_rank, false);
    linear("linear_proj", "o_proj", h, n * m.v_head_dim, names.output_bias);
  }
  void attention() const {
    if (model.multi_latent_attention) return latent_attention();
    const int64_t h = model.hidden_size, d = head_dim_of(model);
    qkv("weight");
    if (names.qkv_bias) qkv("bias");
    if (names.qk_norm) {
      whole("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", {d});
      whole("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", {d});
    }
    whole("self_attention.linear_proj.weight", "self_attn.o_proj.weight", {h, heads_of(model) * d});
    if (names.output_bias) whole("self_attention.linear_proj.bias", "self_attn.o_proj.bias", {h});
  }
  void all(bool has_experts) const {
    const int64_t h = model.hidden_size;
    whole("input_layernorm.weight", "input_layernorm.weight", {h});
    attention();
    whole("pre_mlp_layernorm.weight", "post_attention_layernorm.weight", {h});
    has_experts ? experts() : mlp("mlp", model.ffn_hidden_size);
  }
};

}  // namespace

std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

int64_t ConfigReader::integer(const char* key) const {
  MPX_CHECK(has(key), "hf", where(key), " is missing");
  MPX_CHECK(config_.at(key).is_number_integer(), "hf", where(key), " is no whole number: ", config_.at(key).dump());
  return config_.at(key).get<int64_t>();
}

int64_t ConfigReader::integer_or_null(const char* key, int64_t otherwise) const {
  if (!config_.contains(key)) return otherwise;
  return has(key) ? integer(key) : 0;
}

double ConfigReader::number(const char* key, double otherwise) const {
  if (!has(key)) return otherwise;
  MPX_CHECK(config_.at(key).is_number(), "hf", where(key), " is no number: ", config_.at(key).dump());
  return config_.at(key).get<double>();
}

bool ConfigReader::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  MPX_CHECK(config_.at(key).is_boolean(), "hf", where(key), " is neither true nor false: ", config_.at(key).dump());
  return config_.at(key).get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  MPX_CHECK(config_.at(key).is_string(), "hf", where(key), " is no text: ", config_.at(key).dump());
  return config_.at(key).get<std::string>();
}

void ConfigReader::require(bool holds, const char* key, const std::string& wanted) const {
  MPX_CHECK(holds, "hf", where(key), " is ", has(key) ? config_.at(key).dump() : "missing",
            ", which makes a model that is not built here; ", wanted, " is");
}

TensorPart whole_part(const std::string& name, const Dims& ours) {
  return {name, ours, Dims(ours.size(), 0), ours, 0, row_major(ours)};
}

TensorPart rows_part(const std::string& name, const Dims& theirs, const Dims& offset, const Dims& size, int64_t row) {
  return {name, theirs, offset, size, row * row_major(theirs)[0], row_major(size)};
}

Settings decoder_settings(const ConfigReader& config, Window window) {
  Settings s = decoder_settings_without_heads(config, window);
  const int64_t hidden = config.integer("hidden_size"), heads = config.integer("num_attention_heads");
  set(s, "num_query_groups", config.integer("num_key_value_heads", heads));
  set(s, "kv_channels", config.integer("head_dim", hidden / std::max<int64_t>(1, heads)));
  return s;
}

Settings decoder_settings_without_heads(const ConfigReader& config, Window window) {
  Settings s;
  set(s, "num_layers", config.integer("num_hidden_layers"));
  set(s, "hidden_size", config.integer("hidden_size"));
  set(s, "num_attention_heads", config.integer("num_attention_heads"));
  set(s, "ffn_hidden_size", config.integer("intermediate_size"));
  set(s, "vocab_size", config.integer("vocab_size"));
  const int64_t positions = config.integer("max_position_embeddings", 2048);
  set(s, "max_position_embeddings", positions);
  set(s, "layernorm_epsilon", config.number("rms_norm_eps", 1e-6));
  set(s, "untie_embeddings_and_output_weights", !config.flag("tie_word_embeddings", false));
  set(s, "attention_dropout", config.number("attention_dropout", 0.0));
  set(s, "normalization", "RMSNorm");
  set(s, "activation", "silu");
  set(s, "gated_linear_unit", true);
  const std::string act = config.text("hidden_act", "silu");
  config.require(act == "silu", "hidden_act", "silu");
  const bool counts = window == Window::said || config.flag("use_sliding_window", false);
  const bool slides = counts && config.integer("sliding_window", positions) < positions;
  config.require(!slides, "sliding_window", "attention to all earlier positions (null)");
  add_rope(config, s);
  return s;
}

static Json rope_config(const config::Model& m) {
  Json rope{{"rope_type", "default"}, {"rope_theta", m.rotary_base}};
  if (m.rotary_percent != 1) rope["partial_rotary_factor"] = m.rotary_percent;
  if (m.rotary_seq_len_interpolation_factor != 1) {
    rope["rope_type"] = "linear";
    rope["factor"] = m.rotary_seq_len_interpolation_factor;
  } else if (m.yarn() && m.rotary_scaling_factor != 1) {
    rope["rope_type"] = "yarn";
    rope["factor"] = m.rotary_scaling_factor;
    rope["original_max_position_embeddings"] = m.original_max_position_embeddings;
    rope["beta_fast"] = m.beta_fast;
    rope["beta_slow"] = m.beta_slow;
    rope["truncate"] = m.yarn_correction_range_round_to_int;
    if (m.mscale_all_dim != 0) rope["mscale"] = m.mscale, rope["mscale_all_dim"] = m.mscale_all_dim;
    if (m.yarn_attention_factor > 0) rope["attention_factor"] = m.yarn_attention_factor;
  } else if (m.use_rope_scaling) {
    rope["rope_type"] = "llama3";
    rope["factor"] = m.rope_scaling_factor;
    rope["low_freq_factor"] = m.rope_scaling_low_freq_factor;
    rope["high_freq_factor"] = m.rope_scaling_high_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_scaling_original_max_position_embeddings;
  }
  return rope;
}

Json decoder_config(const config::Model& m) {
  return {{"num_hidden_layers", m.num_layers},
          {"hidden_size", m.hidden_size},
          {"num_attention_heads", m.num_attention_heads},
          {"num_key_value_heads", groups_of(m)},
          {"head_dim", m.multi_latent_attention ? m.qk_pos_emb_head_dim : head_dim_of(m)},
          {"intermediate_size", m.ffn_hidden_size},
          {"vocab_size", m.vocab_size},
          {"max_position_embeddings", m.max_position_embeddings},
          {"rms_norm_eps", m.layernorm_epsilon},
          {"tie_word_embeddings", !m.untie_embeddings_and_output_weights},
          {"attention_dropout", m.attention_dropout},
          {"initializer_range", m.init_method_std},
          {"hidden_act", "silu"},
          {"use_cache", true},
          {"rope_parameters", rope_config(m)}};
}

std::vector<MappedTensor> decoder_tensors(const config::Model& model, const DecoderNames& names) {
  std::vector<MappedTensor> all;
  const Layer outside{model, names, "", "", all};
  outside.whole("embedding.word_embeddings.weight", "model.embed_tokens.weight",
                {model.vocab_size, model.hidden_size});
  const std::vector<bool> experts = config::moe_layers(model);
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const Layer layer{model, names, base::concat("decoder.layers.", i, "."), base::concat("model.layers.", i, "."),
                      all};
    layer.all(experts[static_cast<size_t>(i)]);
  }
  outside.whole("decoder.final_layernorm.weight", "model.norm.weight", {model.hidden_size});
  if (model.untie_embeddings_and_output_weights)
    outside.whole("output_layer.weight", "lm_head.weight", {model.vocab_size, model.hidden_size});
  return all;
}

bool decoder_layers(const config::Model& m) {
  return m.normalization == config::Normalization::RMSNorm &&
         m.position_embedding_type == config::PositionEmbedding::rope && m.rotary_percent == 1 &&
         m.gated_linear_unit && m.activation == config::Activation::silu;
}

bool plain_decoder(const config::Model& m) {
  return decoder_layers(m) && !m.multi_latent_attention && !m.rotary_interleaved &&
         m.moe_shared_expert_intermediate_size == 0;
}

}  // namespace metroplex::hf
