#include "hf/decoder.h"

#include <charconv>
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
  MPX_CHECK(type == "default" || type == "llama3", "hf", where(key), " says rope_type ", type,
            ", which is not built here; default and llama3 are");
  if (type == "default") return;
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
  void gated(const char* kind) const {
    const bool bias = std::string(kind) == "bias";
    const int64_t f = model.ffn_hidden_size, h = model.hidden_size;
    const auto dims = [&](int64_t first) { return bias ? Dims{first} : Dims{first, h}; };
    MappedTensor tensor{ours + "mlp.linear_fc1." + kind, dims(2 * f), {}};
    for (const char* which : {"gate_proj.", "up_proj."}) {
      const int64_t row = tensor.parts.empty() ? 0 : f;
      tensor.parts.push_back(
          rows_part(theirs + "mlp." + which + kind, dims(f), bias ? Dims{row} : Dims{row, 0}, dims(f), 0));
    }
    out.push_back(std::move(tensor));
  }
  void experts() const {
    const int64_t f = config::expert_ffn_width(model), h = model.hidden_size, count = model.num_moe_experts;
    whole("mlp.router.weight", names.block + ".gate.weight", {count, h});
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
  }
  void all(bool has_experts) const {
    const int64_t h = model.hidden_size, d = head_dim_of(model);
    whole("input_layernorm.weight", "input_layernorm.weight", {h});
    qkv("weight");
    if (names.qkv_bias) qkv("bias");
    if (names.qk_norm) {
      whole("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", {d});
      whole("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", {d});
    }
    whole("self_attention.linear_proj.weight", "self_attn.o_proj.weight", {h, heads_of(model) * d});
    if (names.output_bias) whole("self_attention.linear_proj.bias", "self_attn.o_proj.bias", {h});
    whole("pre_mlp_layernorm.weight", "post_attention_layernorm.weight", {h});
    if (has_experts) return experts();
    gated("weight");
    if (names.mlp_bias) gated("bias");
    whole("mlp.linear_fc2.weight", "mlp.down_proj.weight", {h, model.ffn_hidden_size});
    if (names.mlp_bias) whole("mlp.linear_fc2.bias", "mlp.down_proj.bias", {h});
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
  Settings s;
  const int64_t hidden = config.integer("hidden_size"), heads = config.integer("num_attention_heads");
  set(s, "num_layers", config.integer("num_hidden_layers"));
  set(s, "hidden_size", hidden);
  set(s, "num_attention_heads", heads);
  set(s, "num_query_groups", config.integer("num_key_value_heads", heads));
  set(s, "kv_channels", config.integer("head_dim", hidden / std::max<int64_t>(1, heads)));
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

Json decoder_config(const config::Model& m) {
  Json rope{{"rope_type", m.use_rope_scaling ? "llama3" : "default"}, {"rope_theta", m.rotary_base}};
  if (m.use_rope_scaling) {
    rope["factor"] = m.rope_scaling_factor;
    rope["low_freq_factor"] = m.rope_scaling_low_freq_factor;
    rope["high_freq_factor"] = m.rope_scaling_high_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_scaling_original_max_position_embeddings;
  }
  return {{"num_hidden_layers", m.num_layers},
          {"hidden_size", m.hidden_size},
          {"num_attention_heads", m.num_attention_heads},
          {"num_key_value_heads", groups_of(m)},
          {"head_dim", head_dim_of(m)},
          {"intermediate_size", m.ffn_hidden_size},
          {"vocab_size", m.vocab_size},
          {"max_position_embeddings", m.max_position_embeddings},
          {"rms_norm_eps", m.layernorm_epsilon},
          {"tie_word_embeddings", !m.untie_embeddings_and_output_weights},
          {"attention_dropout", m.attention_dropout},
          {"initializer_range", m.init_method_std},
          {"hidden_act", "silu"},
          {"use_cache", true},
          {"rope_parameters", rope}};
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

bool plain_decoder(const config::Model& m) {
  return m.normalization == config::Normalization::RMSNorm &&
         m.position_embedding_type == config::PositionEmbedding::rope && m.rotary_percent == 1 &&
         m.gated_linear_unit && m.activation == config::Activation::silu &&
         m.moe_shared_expert_intermediate_size == 0;
}

}  // namespace metroplex::hf
