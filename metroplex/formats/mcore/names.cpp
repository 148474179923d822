#include "mcore/names.h"

#include "base/error.h"
#include "config/experts.h"
#include "config/layer_parts.h"

namespace metroplex::mcore {
namespace {

using config::Model;

// The names of a tensor of a layer: without the layer's prefix, in order of preference.
using Tails = std::vector<std::string>;

class Layer {
 public:
  // Tensors of all layers of `group` ("decoder.layers.") may be stored as one, with the number of the layer first.
  Layer(const Model& model, std::string group, int64_t number, std::vector<MappedTensor>& out)
      : model_(model), group_(std::move(group)), number_(number), out_(out) {}

  void add_all(const config::LayerParts& parts) {
    const int64_t hidden = model_.hidden_size;
    if (parts.mamba) {
      add_norm("norm", hidden, {"mixer.in_proj.layer_norm"});
      add_mamba();
    }
    if (parts.attention || parts.delta_net)
      add_norm("input_layernorm", hidden,
               {parts.attention ? "self_attention.linear_qkv.layer_norm" : "self_attention.in_proj.layer_norm"});
    if (parts.delta_net) add_delta_net();
    if (parts.attention) model_.multi_latent_attention ? add_latent_attention() : add_attention();
    if (!parts.mlp && !parts.experts) return;
    add_norm("pre_mlp_layernorm", hidden, {"mlp.linear_fc1.layer_norm"});
    parts.experts ? add_experts() : add_mlp("mlp", model_.ffn_hidden_size);
  }
  void add(const std::string& tail, const Dims& shape, const Tails& others = {}) {
    MappedTensor tensor{number_name(tail), shape, "weight", {}};
    Tails tails{tail};
    tails.insert(tails.end(), others.begin(), others.end());
    for (const std::string& name : tails) {
      tensor.alternatives.push_back({whole(number_name(name), {}, shape)});
      tensor.alternatives.push_back({whole(group_ + inner_ + name, {number_}, shape)});
    }
    out_.push_back(std::move(tensor));
  }
  void add_norm(const std::string& tail, int64_t width, const Tails& fused = {}) {
    for (const char* kind : {"weight", "bias"}) {
      const bool has_bias = model_.normalization == config::Normalization::LayerNorm;
      if (kind == std::string("bias") && !has_bias) continue;
      Tails others;
      for (const std::string& name : fused) others.push_back(base::concat(name, "_", kind));
      add(base::concat(tail, ".", kind), {width}, others);
    }
  }
  // Names of the following tensors have this prefix after the layer's.
  void enter(const std::string& inner) { inner_ = inner; }

 private:
  std::string number_name(const std::string& tail) const { return base::concat(group_, number_, ".", inner_, tail); }
  static Part whole(const std::string& stored, const Dims& index, const Dims& shape) {
    return {stored, index, Dims(shape.size(), 0), shape};
  }

  void add_linear(const std::string& name, int64_t rows, int64_t columns, bool bias) {
    add(name + ".weight", {rows, columns});
    if (bias) add(name + ".bias", {rows});
  }
  void add_attention() {
    const int64_t hidden = model_.hidden_size, heads = model_.num_attention_heads;
    const int64_t head_width = model_.kv_channels > 0 ? model_.kv_channels : hidden / heads;
    const int64_t groups = model_.num_query_groups > 0 ? model_.num_query_groups : heads;
    const int64_t queries = model_.attention_output_gate ? 2 * heads : heads;
    add_linear("self_attention.linear_qkv", (queries + 2 * groups) * head_width, hidden,
               model_.add_bias_linear || model_.add_qkv_bias);
    if (model_.qk_layernorm) {
      add_norm("self_attention.q_layernorm", head_width);
      add_norm("self_attention.k_layernorm", head_width);
    }
    if (model_.softmax_type == config::SoftmaxType::learnable)
      add("self_attention.core_attention.softmax_offset", {heads});
    add_linear("self_attention.linear_proj", hidden, heads * head_width, model_.output_bias());
  }
  void add_latent_attention() {
    const Model& m = model_;
    const int64_t hidden = m.hidden_size, heads = m.num_attention_heads, qk = m.qk_head_dim + m.qk_pos_emb_head_dim;
    if (m.q_lora_rank > 0) {
      add_linear("self_attention.linear_q_down_proj", m.q_lora_rank, hidden, m.add_qkv_bias);
      if (m.qk_layernorm)
        add_norm("self_attention.q_layernorm", m.q_lora_rank, {"self_attention.linear_q_up_proj.layer_norm"});
      add_linear("self_attention.linear_q_up_proj", heads * qk, m.q_lora_rank, false);
    } else {
      add_linear("self_attention.linear_q_proj", heads * qk, hidden, false);
    }
    add_linear("self_attention.linear_kv_down_proj", m.kv_lora_rank + m.qk_pos_emb_head_dim, hidden, m.add_qkv_bias);
    if (m.qk_layernorm)
      add_norm("self_attention.kv_layernorm", m.kv_lora_rank, {"self_attention.linear_kv_up_proj.layer_norm"});
    add_linear("self_attention.linear_kv_up_proj", heads * (m.qk_head_dim + m.v_head_dim), m.kv_lora_rank, false);
    add_linear("self_attention.linear_proj", hidden, heads * m.v_head_dim, m.output_bias());
  }

  // torch_dist stores the rows of each input of a recurrence separately, as in_proj.weight.z.
  struct Rows {
    const char* name;
    int64_t count;
  };
  void add_rows(const std::string& tail, const Dims& shape, const std::vector<Rows>& rows) {
    add(tail, shape);
    std::vector<Part> each, stacked;
    Dims offset(shape.size(), 0), size = shape;
    for (const Rows& row : rows) {
      const std::string name = base::concat(tail, ".", row.name);
      size[0] = row.count;
      each.push_back({number_name(name), {}, offset, size});
      stacked.push_back({group_ + inner_ + name, {number_}, offset, size});
      offset[0] += row.count;
    }
    out_.back().alternatives.push_back(std::move(each));
    out_.back().alternatives.push_back(std::move(stacked));
  }
  void add_mamba() {
    const int64_t hidden = model_.hidden_size, heads = config::mamba_heads(model_),
                  inner = heads * model_.mamba_head_dim, states = model_.mamba_num_groups * model_.mamba_state_dim;
    const std::vector<Rows> convolved{{"x", inner}, {"B", states}, {"C", states}};
    std::vector<Rows> all{{"z", inner}};
    all.insert(all.end(), convolved.begin(), convolved.end());
    all.push_back({"dt", heads});
    add_rows("mixer.in_proj.weight", {2 * inner + 2 * states + heads, hidden}, all);
    if (model_.mamba_proj_bias) add_rows("mixer.in_proj.bias", {2 * inner + 2 * states + heads}, all);
    add_rows("mixer.conv1d.weight", {inner + 2 * states, 1, model_.mamba_conv_kernel_dim}, convolved);
    if (model_.mamba_conv_bias) add_rows("mixer.conv1d.bias", {inner + 2 * states}, convolved);
    for (const char* name : {"mixer.dt_bias", "mixer.A_log", "mixer.D"}) add(name, {heads});
    add("mixer.norm.weight", {inner});
    add_linear("mixer.out_proj", hidden, inner, model_.mamba_proj_bias);
  }
  void add_delta_net() {
    const Model& m = model_;
    const int64_t heads = m.linear_num_value_heads, keys = m.linear_num_key_heads * m.linear_key_head_dim,
                  values = heads * m.linear_value_head_dim;
    const std::vector<Rows> convolved{{"query", keys}, {"key", keys}, {"value", values}};
    std::vector<Rows> all = convolved;
    all.insert(all.end(), {{"z", values}, {"beta", heads}, {"alpha", heads}});
    add_rows("self_attention.in_proj.weight", {2 * keys + 2 * values + 2 * heads, m.hidden_size}, all);
    add_rows("self_attention.conv1d.weight", {2 * keys + values, 1, m.linear_conv_kernel_dim}, convolved);
    add("self_attention.dt_bias", {heads});
    add("self_attention.A_log", {heads});
    add("self_attention.out_norm.weight", {m.linear_value_head_dim});
    add("self_attention.out_proj.weight", {m.hidden_size, values});
  }

  // torch_dist may store gate and up separately, as linear_fc1.weight_w and linear_fc1.weight_v.
  void add_fc1(const std::string& name, const Dims& shape) {
    add(name, shape);
    if (!model_.gated_linear_unit) return;
    Dims half = shape, second(shape.size(), 0);
    half[0] /= 2, second[0] = half[0];
    out_.back().alternatives.push_back(
        {{number_name(name + "_w"), {}, Dims(shape.size(), 0), half}, {number_name(name + "_v"), {}, second, half}});
  }
  void add_mlp(const std::string& name, int64_t width) {
    const int64_t hidden = model_.hidden_size, inner = model_.gated_linear_unit ? 2 * width : width;
    add_fc1(name + ".linear_fc1.weight", {inner, hidden});
    if (model_.mlp_bias()) add_fc1(name + ".linear_fc1.bias", {inner});
    add(name + ".linear_fc2.weight", {hidden, width});
    if (model_.mlp_bias()) add(name + ".linear_fc2.bias", {hidden});
  }

  void add_experts() {
    const int64_t hidden = model_.hidden_size, count = model_.num_moe_experts,
                  width = config::expert_ffn_width(model_);
    const int64_t inner = model_.gated_linear_unit ? 2 * width : width;
    add("mlp.router.weight", {count, hidden});
    if (model_.add_bias_linear) add("mlp.router.bias", {count});
    if (model_.moe_router_enable_expert_bias) {
      add("mlp.router.expert_bias", {count});
      out_.back().kind = "buffer";
    }
    const int64_t row_width = config::expert_row_width(model_);
    add_stack("linear_fc1.weight", {count, inner, row_width});
    add_stack("linear_fc2.weight", {count, row_width, width});
    if (model_.add_bias_linear) {
      add_stack("linear_fc1.bias", {count, inner});
      add_stack("linear_fc2.bias", {count, row_width});
    }
    if (model_.moe_latent_size > 0) {
      add_linear("mlp.fc1_latent_proj", row_width, hidden, model_.mlp_bias());
      add_linear("mlp.fc2_latent_proj", hidden, row_width, model_.mlp_bias());
    }
    if (model_.moe_shared_expert_intermediate_size == 0) return;
    add_mlp("mlp.shared_experts", model_.moe_shared_expert_intermediate_size);
    if (model_.moe_shared_expert_gate) add("mlp.shared_experts.gate_weight", {1, hidden});
  }
  // The tensors of all experts, as one with the number of the expert after that of the layer, or one per expert.
  void add_stack(const std::string& tail, const Dims& shape) {
    add("mlp.experts." + tail, shape, {"mlp.experts.experts." + tail});
    for (const char* each : {"mlp.experts.local_experts.", "mlp.experts.experts."}) {
      std::vector<Part> parts, halves;
      for (int64_t expert = 0; expert < shape[0]; ++expert) {
        Dims offset(shape.size(), 0), size = shape;
        offset[0] = expert, size[0] = 1;
        const std::string name = number_name(base::concat(each, expert, ".", tail));
        parts.push_back({name, {}, offset, size, 1});
        size[1] /= 2;
        halves.push_back({name + "_w", {}, offset, size, 1});
        offset[1] = size[1];
        halves.push_back({name + "_v", {}, offset, size, 1});
      }
      out_.back().alternatives.push_back(std::move(parts));
      if (tail.starts_with("linear_fc1") && model_.gated_linear_unit)
        out_.back().alternatives.push_back(std::move(halves));
    }
  }

  const Model& model_;
  const std::string group_;
  const int64_t number_;
  std::string inner_;
  std::vector<MappedTensor>& out_;
};

void add_whole(const std::string& name, const Dims& shape, std::vector<MappedTensor>& out) {
  out.push_back({name, shape, "weight", {{{name, {}, Dims(shape.size(), 0), shape}}}});
}

}  // namespace

std::vector<MappedTensor> map_tensors(const Model& model) {
  std::vector<MappedTensor> all;
  const int64_t hidden = model.hidden_size;
  add_whole("embedding.word_embeddings.weight", {model.vocab_size, hidden}, all);
  if (model.position_embedding_type == config::PositionEmbedding::learned_absolute)
    add_whole("embedding.position_embeddings.weight", {model.max_position_embeddings, hidden}, all);
  const std::vector<config::LayerParts> layers = config::layer_parts(model);
  for (size_t i = 0; i < layers.size(); ++i)
    Layer(model, "decoder.layers.", static_cast<int64_t>(i), all).add_all(layers[i]);
  for (const char* kind : {"weight", "bias"}) {
    if (kind == std::string("bias") && model.normalization != config::Normalization::LayerNorm) continue;
    add_whole(base::concat("decoder.final_layernorm.", kind), {hidden}, all);
    if (model.hybrid_layer_pattern.empty()) continue;
    const Part hybrid{base::concat("decoder.final_norm.", kind), {}, {0}, {hidden}};  // of Megatron's hybrid models
    all.back().alternatives.push_back({hybrid});
  }
  if (!model.tied()) add_whole("output_layer.weight", {model.vocab_size, hidden}, all);
  for (int64_t i = 0; i < model.mtp_num_layers; ++i) {
    Layer layer(model, "mtp.layers.", i, all);
    layer.add_norm("enorm", hidden);
    layer.add_norm("hnorm", hidden);
    layer.add("eh_proj.weight", {hidden, 2 * hidden});
    layer.add_norm("final_layernorm", hidden);
    layer.enter("transformer_layer.");
    layer.add_all(layers.back());
  }
  return all;
}

}  // namespace metroplex::mcore
