#include "hf/decoder.h"

#include <array>

#include "base/error.h"
#include "config/experts.h"
#include "config/layer_parts.h"

namespace metroplex::hf {
namespace {

int64_t num_heads(const config::Model& m) { return m.num_attention_heads; }
int64_t num_kv_groups(const config::Model& m) { return m.num_query_groups > 0 ? m.num_query_groups : num_heads(m); }
int64_t head_dim_size(const config::Model& m) {
  return m.kv_channels > 0 ? m.kv_channels : m.hidden_size / num_heads(m);
}

Dims row_major(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

struct Layer {
  const config::Model& model;
  const DecoderNames& names;
  std::string ours, theirs;  // "decoder.layers.0.", "model.layers.0."
  std::vector<MappedTensor>& out;

  void whole(const std::string& our_name, const std::string& their_name, const Dims& shape) const {
    out.push_back({ours + our_name, shape, {whole_part(theirs + their_name, shape)}});
  }
  bool qkv_bias() const { return model.add_bias_linear || model.add_qkv_bias; }
  // Per query group: the rows of its queries, then of its key and its value. Hugging Face stores three tensors.
  // With fused_qkv, one: all queries, then all keys, then all values. Gates follow the queries of their group here
  // and of their head there.
  void qkv(const char* kind) const {
    const bool bias = std::string(kind) == "bias";
    const int64_t groups = num_kv_groups(model), d = head_dim_size(model), per_group = num_heads(model) / groups;
    const int64_t gates = model.attention_output_gate ? per_group * d : 0, queries = per_group * d + gates;
    const int64_t h = model.hidden_size, rows = groups * (queries + 2 * d);
    const auto dims = [&](int64_t first) { return bias ? Dims{first} : Dims{first, h}; };
    const auto at = [&](int64_t first) { return bias ? Dims{first} : Dims{first, 0}; };
    MappedTensor tensor{ours + "self_attention.linear_qkv." + kind, dims(rows), {}};
    const bool fused = names.fused_qkv;
    const int64_t q_rows = groups * queries, kv_rows = groups * d, first_k = fused ? q_rows : 0;
    const auto name = [&](const char* which) {
      return theirs + names.attention + "." + (fused ? "qkv" : which) + "_proj." + kind;
    };
    const auto theirs_rows = [&](int64_t separate) { return dims(fused ? q_rows + 2 * kv_rows : separate); };
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = g * (queries + 2 * d);
      if (gates == 0)
        tensor.parts.push_back(rows_part(name("q"), theirs_rows(q_rows), at(row), dims(queries), g * queries));
      for (int64_t i = 0; gates > 0 && i < 2 * per_group; ++i)
        tensor.parts.push_back(rows_part(name("q"), theirs_rows(q_rows), at(row + i % 2 * gates + i / 2 * d), dims(d),
                                         g * queries + i * d));
      tensor.parts.push_back(rows_part(name("k"), theirs_rows(kv_rows), at(row + queries), dims(d), first_k + g * d));
      tensor.parts.push_back(rows_part(name("v"), theirs_rows(kv_rows), at(row + queries + d), dims(d),
                                       (fused ? first_k + kv_rows : 0) + g * d));
    }
    out.push_back(std::move(tensor));
  }
  // The weight of a norm, and the bias of a LayerNorm.
  void norm(const std::string& our_name, const std::string& their_name, int64_t width) const {
    whole(our_name + ".weight", their_name + ".weight", {width});
    if (model.normalization == config::Normalization::LayerNorm && model.add_norm_bias)
      whole(our_name + ".bias", their_name + ".bias", {width});
  }
  // The first layer of an MLP of `width`.
  void mlp_first(const std::string& ours_block, const std::string& theirs_block, int64_t width,
                 const char* kind) const {
    const bool bias = std::string(kind) == "bias";
    const auto dims = [&](int64_t rows) { return bias ? Dims{rows} : Dims{rows, model.hidden_size}; };
    const std::string our_name = ours_block + ".linear_fc1." + kind;
    const auto name = [&](const std::string& layer) { return base::concat(theirs_block, ".", layer, ".", kind); };
    if (!model.gated_linear_unit || names.mlp_gate.empty())
      return whole(our_name, name(names.mlp_up), dims(model.gated_linear_unit ? 2 * width : width));
    MappedTensor tensor{ours + our_name, dims(2 * width), {}};
    for (const std::string& layer : {names.mlp_gate, names.mlp_up}) {
      const int64_t row = tensor.parts.empty() ? 0 : width;
      tensor.parts.push_back(
          rows_part(theirs + name(layer), dims(width), bias ? Dims{row} : Dims{row, 0}, dims(width), 0));
    }
    out.push_back(std::move(tensor));
  }
  void mlp(const std::string& ours_block, const std::string& theirs_block, int64_t width) const {
    const int64_t h = model.hidden_size;
    mlp_first(ours_block, theirs_block, width, "weight");
    if (model.mlp_bias()) mlp_first(ours_block, theirs_block, width, "bias");
    const std::string second = base::concat(theirs_block, ".", names.mlp_down);
    whole(ours_block + ".linear_fc2.weight", second + ".weight", {h, width});
    if (model.mlp_bias()) whole(ours_block + ".linear_fc2.bias", second + ".bias", {h});
  }
  // One tensor for all experts, [expert, in, out], with gate and up columns. Biases exist with interleaved columns.
  void joined_columns(bool interleaved) const {
    const int64_t f = config::expert_ffn_width(model), h = model.hidden_size, count = model.num_moe_experts;
    const std::string first = theirs + names.block + ".experts.gate_up_proj",
                      second = theirs + names.block + ".experts.down_proj";
    const Dims shape{count, h, 2 * f}, of_bias{count, 2 * f};
    MappedTensor weight{ours + "mlp.experts.linear_fc1.weight", {count, 2 * f, h}, {}},
        bias{ours + "mlp.experts.linear_fc1.bias", {count, 2 * f}, {}};
    const int64_t step = interleaved ? 2 : 1;
    for (int64_t part = 0; part < 2; ++part) {
      weight.parts.push_back(
          {first, shape, {0, part * f, 0}, {count, f, h}, interleaved ? part : part * f, {h * 2 * f, step, 2 * f}});
      bias.parts.push_back({first + "_bias", of_bias, {0, part * f}, {count, f}, part, {2 * f, 2}});
    }
    out.push_back(std::move(weight));
    out.push_back({ours + "mlp.experts.linear_fc2.weight",
                   {count, h, f},
                   {{second, {count, f, h}, {0, 0, 0}, {count, h, f}, 0, {f * h, 1, h}}}});
    if (!interleaved) return;
    out.push_back(std::move(bias));
    whole("mlp.experts.linear_fc2.bias", names.block + ".experts.down_proj_bias", {count, h});
  }
  void joined_rows() const {
    const int64_t f = config::expert_ffn_width(model), h = model.hidden_size, count = model.num_moe_experts;
    whole("mlp.experts.linear_fc1.weight", base::concat(names.block, ".", names.up, ".weight"), {count, 2 * f, h});
    whole("mlp.experts.linear_fc2.weight", base::concat(names.block, ".", names.down, ".weight"), {count, h, f});
  }
  void separate_experts() const {
    const int64_t f = config::expert_ffn_width(model), h = config::expert_row_width(model),
                  count = model.num_moe_experts;
    const bool gated = model.gated_linear_unit;
    MappedTensor one{ours + "mlp.experts.linear_fc1.weight", {count, gated ? 2 * f : f, h}, {}},
        two{ours + "mlp.experts.linear_fc2.weight", {count, h, f}, {}};
    for (int64_t e = 0; e < count; ++e) {
      const std::string expert = base::concat(theirs, names.block, ".experts.", e, ".");
      if (gated) one.parts.push_back(rows_part(expert + names.gate + ".weight", {f, h}, {e, 0, 0}, {1, f, h}, 0));
      one.parts.push_back(rows_part(expert + names.up + ".weight", {f, h}, {e, gated ? f : 0, 0}, {1, f, h}, 0));
      two.parts.push_back(rows_part(expert + names.down + ".weight", {h, f}, {e, 0, 0}, {1, h, f}, 0));
    }
    out.push_back(std::move(one));
    out.push_back(std::move(two));
  }
  void latent_projections() const {
    const int64_t hidden = model.hidden_size, latent = model.moe_latent_size;
    const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
      const std::string our_name = "mlp." + name, their_name = base::concat(names.block, ".", name);
      whole(our_name + ".weight", their_name + ".weight", {rows, columns});
      if (model.mlp_bias()) whole(our_name + ".bias", their_name + ".bias", {rows});
    };
    add("fc1_latent_proj", latent, hidden);
    add("fc2_latent_proj", hidden, latent);
  }
  void experts() const {
    const int64_t h = model.hidden_size, count = model.num_moe_experts;
    const std::string block = names.block + ".", router = block + names.router;
    whole("mlp.router.weight", router + ".weight", {count, h});
    if (model.add_bias_linear) whole("mlp.router.bias", router + ".bias", {count});
    if (model.moe_router_enable_expert_bias) {
      whole("mlp.router.expert_bias", block + names.expert_bias, {count});
      if (names.expert_bias_rows) out.back().parts[0].shape = {1, count};
      out.back().kind = "buffer";
    }
    using Experts = DecoderNames::Experts;
    const bool interleaved = names.experts == Experts::interleaved_columns;
    if (interleaved || names.experts == Experts::columns) joined_columns(interleaved);
    else if (names.experts == Experts::rows) joined_rows();
    else separate_experts();
    if (model.moe_latent_size > 0) latent_projections();
    const int64_t shared = model.moe_shared_expert_intermediate_size;
    if (shared == 0) return;
    mlp("mlp.shared_experts", block + names.shared, shared);
    if (model.moe_shared_expert_gate)
      whole("mlp.shared_experts.gate_weight", block + names.shared_gate + ".weight", {1, h});
  }
  // Multi-head latent attention. Rows inside heads, latents and rotated keys have the same order in both formats.
  void latent_attention() const {
    const config::Model& m = model;
    const int64_t h = m.hidden_size, n = num_heads(m), qk = m.qk_head_dim + m.qk_pos_emb_head_dim;
    const auto linear = [&](const std::string& name, const std::string& their_name, int64_t rows, int64_t in,
                            bool bias) {
      whole("self_attention." + name + ".weight", "self_attn." + their_name + ".weight", {rows, in});
      if (bias) whole("self_attention." + name + ".bias", "self_attn." + their_name + ".bias", {rows});
    };
    if (m.q_lora_rank > 0) {
      linear("linear_q_down_proj", "q_a_proj", m.q_lora_rank, h, qkv_bias());
      whole("self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight", {m.q_lora_rank});
      linear("linear_q_up_proj", "q_b_proj", n * qk, m.q_lora_rank, false);
    } else {
      linear("linear_q_proj", "q_proj", n * qk, h, false);
    }
    linear("linear_kv_down_proj", "kv_a_proj_with_mqa", m.kv_lora_rank + m.qk_pos_emb_head_dim, h, qkv_bias());
    whole("self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight", {m.kv_lora_rank});
    linear("linear_kv_up_proj", "kv_b_proj", n * (m.qk_head_dim + m.v_head_dim), m.kv_lora_rank, false);
    linear("linear_proj", "o_proj", h, n * m.v_head_dim, model.output_bias());
  }
  // [q; k; v; z; beta; alpha] here; there the rows of a key head are adjacent, or z, beta and alpha are separate.
  void delta_net_inputs() const {
    const int64_t hidden = model.hidden_size, groups = model.linear_num_key_heads, keys = model.linear_key_head_dim;
    const int64_t heads = model.linear_num_value_heads / groups, values = heads * model.linear_value_head_dim;
    const std::array<int64_t, 6> rows{keys, keys, values, values, heads, heads};  // per key head
    const int64_t qkvz = groups * 2 * (keys + values), ba = groups * 2 * heads;
    MappedTensor tensor{ours + "self_attention.in_proj.weight", {qkvz + ba, hidden}, {}};
    const std::string prefix = theirs + "linear_attn.in_proj_";
    const auto add = [&](const char* name, int64_t their_rows, int64_t row, int64_t count, int64_t their_row) {
      tensor.parts.push_back(
          rows_part(prefix + name + ".weight", {their_rows, hidden}, {row, 0}, {count, hidden}, their_row));
    };
    if (!names.fused_delta_net) {
      add("qkv", qkvz - groups * values, 0, qkvz - groups * values, 0);
      add("z", groups * values, qkvz - groups * values, groups * values, 0);
      add("b", groups * heads, qkvz, groups * heads, 0);
      add("a", groups * heads, qkvz + groups * heads, groups * heads, 0);
      return out.push_back(std::move(tensor));
    }
    for (int64_t group = 0; group < groups; ++group) {
      int64_t section = 0, in_qkvz = group * 2 * (keys + values), in_ba = group * 2 * heads;
      for (size_t i = 0; i < rows.size(); ++i) {
        int64_t& their_row = i < 4 ? in_qkvz : in_ba;
        add(i < 4 ? "qkvz" : "ba", i < 4 ? qkvz : ba, section + group * rows[i], rows[i], their_row);
        section += groups * rows[i], their_row += rows[i];
      }
    }
    out.push_back(std::move(tensor));
  }
  void delta_net() const {
    const config::Model& m = model;
    const int64_t keys = m.linear_num_key_heads * m.linear_key_head_dim,
                  values = m.linear_num_value_heads * m.linear_value_head_dim;
    delta_net_inputs();
    const auto add = [&](const char* our_name, const char* their_name, const Dims& shape) {
      whole(std::string("self_attention.") + our_name, std::string("linear_attn.") + their_name, shape);
    };
    add("conv1d.weight", "conv1d.weight", {2 * keys + values, 1, m.linear_conv_kernel_dim});
    add("dt_bias", "dt_bias", {m.linear_num_value_heads});
    add("A_log", "A_log", {m.linear_num_value_heads});
    add("out_norm.weight", "norm.weight", {m.linear_value_head_dim});
    add("out_proj.weight", "out_proj.weight", {m.hidden_size, values});
  }
  // [q, k, v of each head; gates] here, separate tensors there.
  void lightning() const {
    const int64_t hidden = model.hidden_size, width = num_heads(model) * head_dim_size(model);
    const std::string attention = names.attention + ".";
    out.push_back(
        {ours + "self_attention.in_proj.weight",
         {4 * width, hidden},
         {rows_part(theirs + attention + "qkv_proj.weight", {3 * width, hidden}, {0, 0}, {3 * width, hidden}, 0),
          rows_part(theirs + attention + "output_gate.weight", {width, hidden}, {3 * width, 0}, {width, hidden},
                    0)}});
    whole("self_attention.out_norm.weight", attention + "norm.weight", {width});
    whole("self_attention.out_proj.weight", attention + "out_proj.weight", {hidden, width});
  }
  void attention() const {
    if (model.multi_latent_attention) return latent_attention();
    const int64_t h = model.hidden_size, d = head_dim_size(model);
    qkv("weight");
    if (qkv_bias()) qkv("bias");
    if (model.qk_layernorm) {
      const bool all = model.qk_layernorm_all_heads;
      norm("self_attention.q_layernorm", names.attention + "." + names.q_norm, all ? num_heads(model) * d : d);
      norm("self_attention.k_layernorm", names.attention + "." + names.k_norm, all ? num_kv_groups(model) * d : d);
    }
    if (model.softmax_type == config::SoftmaxType::learnable)
      whole("self_attention.core_attention.softmax_offset", names.attention + ".sinks", {num_heads(model)});
    whole("self_attention.linear_proj.weight", names.attention + ".o_proj.weight", {h, num_heads(model) * d});
    if (model.output_bias()) whole("self_attention.linear_proj.bias", names.attention + ".o_proj.bias", {h});
  }
  void mamba() const {
    const int64_t h = model.hidden_size, heads = config::mamba_heads(model), inner = heads * model.mamba_head_dim;
    const int64_t convolved = inner + 2 * model.mamba_num_groups * model.mamba_state_dim;
    const auto add = [&](const std::string& name, const Dims& shape) {
      whole("mixer." + name, "mixer." + name, shape);
    };
    add("in_proj.weight", {inner + convolved + heads, h});
    if (model.mamba_proj_bias) add("in_proj.bias", {inner + convolved + heads});
    add("conv1d.weight", {convolved, 1, model.mamba_conv_kernel_dim});
    if (model.mamba_conv_bias) add("conv1d.bias", {convolved});
    for (const char* const name : {"dt_bias", "A_log", "D"}) add(name, {heads});
    add("norm.weight", {inner});
    add("out_proj.weight", {h, inner});
    if (model.mamba_proj_bias) add("out_proj.bias", {h});
  }
  void all(const config::LayerParts& parts) const {
    const int64_t h = model.hidden_size;
    const bool mixes = parts.has_mixer(), feeds = parts.mlp || parts.experts;
    if (mixes && model.pre_norm) norm(parts.mamba ? "norm" : "input_layernorm", names.input_norm, h);
    if (parts.mamba) mamba();
    if (parts.delta_net) delta_net();
    if (parts.lightning) lightning();
    if (parts.attention) attention();
    if (mixes && model.sandwich_norm) norm("post_self_attn_layernorm", names.attention_norm, h);
    if (feeds && model.pre_norm && !model.parallel_attention_mlp) norm("pre_mlp_layernorm", names.mlp_input_norm, h);
    if (parts.experts) experts();
    if (parts.mlp) mlp("mlp", names.mlp, model.ffn_hidden_size);
    if (feeds && model.sandwich_norm) norm("post_mlp_layernorm", names.mlp_norm, h);
  }
};

}  // namespace

TensorPart whole_part(const std::string& name, const Dims& ours) {
  return {name, ours, Dims(ours.size(), 0), ours, 0, row_major(ours)};
}

TensorPart rows_part(const std::string& name, const Dims& theirs, const Dims& offset, const Dims& size, int64_t row) {
  return {name, theirs, offset, size, row * row_major(theirs)[0], row_major(size)};
}

Json rope_config(const config::Model& m) {
  Json rope{{"rope_type", "default"}, {"rope_theta", m.rotary_base}};
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
  } else if (m.longrope()) {
    rope["rope_type"] = "longrope";
    rope["short_factor"] = config::longrope_factors(m.longrope_short_factor);
    rope["long_factor"] = config::longrope_factors(m.longrope_long_factor);
    rope["factor"] = m.rotary_scaling_factor;
    rope["original_max_position_embeddings"] = m.original_max_position_embeddings;
    if (const double factor = m.yarn_attention_factor; factor > 0) rope["attention_factor"] = factor;
  } else if (m.use_rope_scaling) {
    rope["rope_type"] = "llama3";
    rope["factor"] = m.rope_scaling_factor;
    rope["low_freq_factor"] = m.rope_scaling_low_freq_factor;
    rope["high_freq_factor"] = m.rope_scaling_high_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_scaling_original_max_position_embeddings;
  }
  return rope;
}

Json rope_config_by_layer_type(const config::Model& m) {
  const double base = m.rotary_base_local > 0 ? m.rotary_base_local : m.rotary_base;
  const Json local{{"rope_type", "default"}, {"rope_theta", m.has_window() ? base : 10000.0}};
  return {{"full_attention", rope_config(m)}, {"sliding_attention", local}};
}

Json decoder_config(const config::Model& m) {
  return {{"num_hidden_layers", m.num_layers},
          {"hidden_size", m.hidden_size},
          {"num_attention_heads", m.num_attention_heads},
          {"num_key_value_heads", num_kv_groups(m)},
          {"head_dim", m.multi_latent_attention ? m.qk_pos_emb_head_dim : head_dim_size(m)},
          {"intermediate_size", m.ffn_hidden_size},
          {"vocab_size", m.vocab_size},
          {"max_position_embeddings", m.max_position_embeddings},
          {"rms_norm_eps", m.layernorm_epsilon},
          {"tie_word_embeddings", !m.untie_embeddings_and_output_weights},
          {"attention_dropout", m.attention_dropout},
          {"initializer_range", m.init_method_std},
          {"hidden_act", activation_name(m)},
          {"use_cache", true},
          {"rope_parameters", rope_config(m)}};
}

std::string multi_token_prefix(int64_t layer) { return base::concat("model.layers.", layer, "."); }

// Multi-token prediction layers store copies of the model's embedding and output weight.
static void add_copies(const config::Model& model, const std::string& prefix, std::vector<MappedTensor>& all) {
  const char* const head = model.tied() ? "embedding.word_embeddings.weight" : "output_layer.weight";
  for (MappedTensor& tensor : all) {
    const auto add = [&](const char* name) {
      tensor.parts.push_back(whole_part(prefix + name, tensor.shape));
      tensor.parts.back().copy = true;
    };
    if (tensor.name == "embedding.word_embeddings.weight") add("embed_tokens.weight");
    if (tensor.name == head) add("shared_head.head.weight");
  }
}

std::vector<MappedTensor> decoder_tensors(const config::Model& model, const DecoderNames& names) {
  std::vector<MappedTensor> all;
  const Layer outside{model, names, "", "", all};
  outside.whole("embedding.word_embeddings.weight", base::concat(names.model, ".", names.embedding, ".weight"),
                {model.vocab_size, model.hidden_size});
  const std::vector<config::LayerParts> parts = config::layer_parts(model);
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const Layer layer{model, names, base::concat("decoder.layers.", i, "."),
                      base::concat(names.model, ".layers.", i, "."), all};
    layer.all(parts[static_cast<size_t>(i)]);
  }
  outside.norm("decoder.final_layernorm", base::concat(names.model, ".", names.final_norm), model.hidden_size);
  if (model.untie_embeddings_and_output_weights)
    outside.whole("output_layer.weight", "lm_head.weight", {model.vocab_size, model.hidden_size});
  for (int64_t i = 0; i < model.mtp_num_layers; ++i) {
    const std::string theirs = multi_token_prefix(model.num_layers + i);
    add_copies(model, theirs, all);
    Layer layer{model, names, base::concat("mtp.layers.", i, "."), theirs, all};
    layer.whole("enorm.weight", "enorm.weight", {model.hidden_size});
    layer.whole("hnorm.weight", "hnorm.weight", {model.hidden_size});
    layer.whole("eh_proj.weight", "eh_proj.weight", {model.hidden_size, 2 * model.hidden_size});
    layer.whole("final_layernorm.weight", "shared_head.norm.weight", {model.hidden_size});
    layer.ours += "transformer_layer.";
    layer.all(parts.back());
  }
  return all;
}

Json layer_types(const config::Model& m, const char* local) {
  Json types = Json::array();
  const std::vector<bool> windows = config::window_layers(m), linear = config::linear_attention_layers(m);
  for (size_t i = 0; i < windows.size(); ++i)
    types.push_back(linear[i] ? "linear_attention" : windows[i] ? local : "full_attention");
  return types;
}

Json rotated_layers_config(const config::Model& m) {
  Json rotated = Json::array();
  for (const bool layer : config::rope_layers(m)) rotated.push_back(layer ? 1 : 0);
  return rotated;
}

Json window_config(const config::Model& m) { return m.has_window() ? Json(m.window_size + 1) : Json(); }

void add_switched_window(const config::Model& m, Json& json) {
  json["use_sliding_window"] = m.has_window();
  if (!m.has_window()) return;
  json["sliding_window"] = m.window_size + 1;
  json["layer_types"] = layer_types(m);
}

}  // namespace metroplex::hf
