// Megatron's complete num_floating_point_operations. In addition to plan/model_flops.h it counts the second form of
// gated delta nets, which this trainer does not train, and hybrids with Mamba as Megatron does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/model_flops.h"

namespace metroplex::test {

struct MegatronExperts : plan::ExpertShape {
  bool shared_expert_gate = false;
  std::vector<bool> layer_is_moe = {};  // without multi-token prediction layers
};

struct LinearAttention : plan::DeltaNetShape {
  std::vector<bool> layer_is_linear = {};  // then the multi-token prediction layers
  bool gdn2 = false;                       // second form: gates as wide as keys and values
};

// A model as a string of layers: M mamba, * attention, - MLP, E experts, G gated delta net. '|' separates pipeline
// stages; '/' precedes each multi-token prediction depth.
struct HybridLayers {
  std::string pattern = {};
  int64_t mamba_state_dim = 128, mamba_head_dim = 64, mamba_num_groups = 8, mamba_num_heads = 128;
};

struct MegatronShape : plan::ModelShape {
  int64_t num_layers = 0, num_mtp_layers = 0;
  bool rms_norm = false;
  bool tied_embedding = true;
  std::optional<MegatronExperts> all_experts = std::nullopt;
  std::optional<LinearAttention> linear = std::nullopt;
  std::optional<HybridLayers> hybrid = std::nullopt;

  // True if plan::step_flops() supports the model.
  bool plain() const { return num_mtp_layers == 0 && !(linear && linear->gdn2) && !hybrid; }
};

inline double as_double(int64_t value) { return static_cast<double>(value); }

// Functions with a Load return the multiply-adds of a forward for `tokens` tokens; `squares` is the sum over
// documents of length^2.
struct Load {
  double tokens;
  double squares;
};

inline double feed_forward(const MegatronShape& shape, double input, double width) {
  return input * width * (shape.gated_linear_unit ? 3 : 2);
}

inline double latent_attention(const MegatronShape& shape, const plan::LatentShape& mla, const Load& load) {
  const double hidden = as_double(shape.hidden_size), heads = as_double(shape.num_attention_heads);
  const double qk_dim = as_double(mla.qk_head_dim + mla.qk_pos_emb_head_dim), v_dim = as_double(mla.v_head_dim);
  const double query =
      mla.q_lora_rank > 0 ? as_double(mla.q_lora_rank) * (hidden + heads * qk_dim + 1) : hidden * heads * qk_dim;
  const double key_value =
      as_double(mla.kv_lora_rank) * (hidden + heads * as_double(mla.qk_head_dim + mla.v_head_dim) + 1) +
      hidden * as_double(mla.qk_pos_emb_head_dim);
  const double output = heads * v_dim * hidden;
  return load.tokens * (query + key_value + output) + load.squares * heads * (qk_dim + v_dim) / 2;
}

inline double attention(const MegatronShape& shape, const Load& load) {
  if (shape.latent) return latent_attention(shape, *shape.latent, load);
  const double hidden = as_double(shape.hidden_size);
  const double query = as_double(shape.kv_channels * shape.num_attention_heads);
  const double key = as_double(shape.kv_channels * shape.num_query_groups);
  const double projections = hidden * (query * (shape.attention_output_gate ? 3 : 2) + 2 * key);
  return load.tokens * projections + load.squares * query;
}

inline double linear_attention(const MegatronShape& shape, const LinearAttention& net, const Load& load) {
  const double hidden = as_double(shape.hidden_size), value_heads = as_double(net.num_value_heads);
  const double key = as_double(net.key_head_dim * net.num_key_heads);
  const double value = as_double(net.value_head_dim * net.num_value_heads);
  const double value_dim = as_double(net.value_head_dim);
  const double input = net.gdn2 ? 4 * key + 3 * value : 2 * key + 2 * value + 2 * value_heads;
  return load.tokens * (hidden * input + as_double(net.conv_kernel_dim) * (2 * key + value) +
                        value_heads * value_dim * value_dim * 4 + hidden * value);
}

inline double moe(const MegatronShape& shape, const MegatronExperts& experts, const Load& load) {
  const double hidden = as_double(shape.hidden_size);
  const double width = as_double(experts.ffn_hidden_size * experts.router_topk);
  double routed = feed_forward(shape, hidden, width);
  if (experts.latent_size > 0) {
    const double latent = as_double(experts.latent_size);
    routed = feed_forward(shape, latent, width) + 2 * hidden * latent;
  }
  return load.tokens * (routed + feed_forward(shape, hidden, as_double(experts.shared_ffn_hidden_size)));
}

inline double dense(const MegatronShape& shape, const Load& load) {
  return load.tokens * feed_forward(shape, as_double(shape.hidden_size), as_double(shape.ffn_hidden_size));
}

inline double logits(const MegatronShape& shape, const Load& load) {
  return load.tokens * as_double(shape.hidden_size) * as_double(shape.padded_vocab_size) *
         as_double(shape.num_mtp_layers + 1);
}

inline double mamba(const MegatronShape& shape, const HybridLayers& hybrid, const Load& load) {
  const double hidden = as_double(shape.hidden_size), inner = 2 * hidden;
  const double state = as_double(hybrid.mamba_state_dim);
  const double heads =
      hybrid.mamba_num_heads > 0 ? as_double(hybrid.mamba_num_heads) : inner / as_double(hybrid.mamba_head_dim);
  const double scan = 3.5 * inner * state;  // seven operations per element, counted in pairs
  return load.tokens *
         (hidden * (2 * inner + 2 * as_double(hybrid.mamba_num_groups) * state + heads) + scan + inner * hidden);
}

inline double hybrid_model(const MegatronShape& shape, const HybridLayers& hybrid, const Load& load) {
  double sum = logits(shape, load);
  for (const char layer : hybrid.pattern) {
    switch (layer) {
      case '*':
        sum += attention(shape, load);
        break;
      case 'M':
        sum += mamba(shape, hybrid, load);
        break;
      case '-':
        sum += dense(shape, load);
        break;
      case 'E':
        MPX_CHECK(shape.all_experts.has_value(), "test", "layer pattern '", hybrid.pattern,
                  "' has E but the model no experts");
        sum += moe(shape, *shape.all_experts, load);
        break;
      case 'G':
        sum += linear_attention(shape, shape.linear.value_or(LinearAttention{}), load);
        break;
      case '|':
      case '/':
        break;
      default:
        MPX_CHECK(false, "test", "layer pattern '", hybrid.pattern, "': no cost is known for '",
                  std::string(1, layer), "'; known are * M - E G");
    }
  }
  return sum;
}

inline double transformer(const MegatronShape& shape, const Load& load) {
  const int64_t layers = shape.num_layers + shape.num_mtp_layers;
  int64_t moe_layers = 0, linear_layers = 0;
  if (shape.all_experts) {
    const auto& pattern = shape.all_experts->layer_is_moe;
    MPX_CHECK(static_cast<int64_t>(pattern.size()) == shape.num_layers, "test", "the moe pattern names ",
              pattern.size(), " layers, model.num_layers is ", shape.num_layers);
    moe_layers = std::count(pattern.begin(), pattern.end(), true) +
                 (shape.num_mtp_layers > 0 && pattern.back() ? shape.num_mtp_layers : 0);
  }
  if (shape.linear) {
    const auto& pattern = shape.linear->layer_is_linear;
    MPX_CHECK(static_cast<int64_t>(pattern.size()) == layers, "test", "the linear attention pattern names ",
              pattern.size(), " layers of ", layers);
    linear_layers = std::count(pattern.begin(), pattern.end(), true);
  }
  const double hidden = as_double(shape.hidden_size);
  double sum = as_double(layers - linear_layers) * attention(shape, load);
  if (linear_layers > 0) sum += as_double(linear_layers) * linear_attention(shape, *shape.linear, load);
  sum += as_double(layers - moe_layers) * dense(shape, load);
  if (moe_layers > 0) sum += as_double(moe_layers) * moe(shape, *shape.all_experts, load);
  sum += as_double(shape.num_mtp_layers) * load.tokens * (3 * hidden + 2 * hidden * hidden);
  return sum + logits(shape, load);
}

inline double megatron_flops(const MegatronShape& shape, const plan::StepTokens& tokens) {
  const double batch = as_double(tokens.batch_size), length = as_double(shape.seq_length);
  const Load load{tokens.num_tokens.value_or(batch * length),
                  tokens.squared_length_sum.value_or(batch * length * length)};
  return 6 * (shape.hybrid ? hybrid_model(shape, *shape.hybrid, load) : transformer(shape, load));
}

}  // namespace metroplex::test
