// The numbers of a network that its cost follows from: plain integers, so that plans can be made for models that the
// trainer does not build yet. Filled from the config for those that it does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::sim {

// Multi-head latent attention: queries and keys/values pass through low-rank projections.
struct LatentAttention {
  std::optional<int64_t> q_lora_rank = std::nullopt;  // none: queries are projected directly
  int64_t kv_lora_rank = 0;
  int64_t qk_head_dim = 0;
  int64_t qk_pos_emb_head_dim = 0;
  int64_t v_head_dim = 0;
};

struct Experts {
  int64_t num_experts = 0;
  int64_t router_topk = 0;
  int64_t ffn_hidden_size = 0;
  int64_t shared_ffn_hidden_size = 0;  // 0: no shared expert
  bool shared_expert_gate = false;
  std::optional<int64_t> latent_size = std::nullopt;  // routed experts work on a projection of this size
  std::vector<bool> layer_is_moe = {};                // one entry a transformer layer
};

// Gated delta net layers, in place of some attention layers.
struct LinearAttention {
  int64_t key_head_dim = 128, value_head_dim = 128;
  int64_t num_key_heads = 16, num_value_heads = 32;
  int64_t conv_kernel_dim = 4;
  bool gdn2 = false;                       // the second form: gates as wide as the keys and values
  std::vector<bool> layer_is_linear = {};  // one entry a layer, the multi-token prediction layers too
};

// A model written as a string of layers (M mamba, * attention, - MLP, E experts, G gated delta net), with '|' between
// pipeline stages and '/' before each multi-token prediction depth.
struct HybridLayers {
  std::string pattern = {};
  int64_t mamba_state_dim = 128, mamba_head_dim = 64, mamba_num_groups = 8, mamba_num_heads = 128;
};

struct ModelShape {
  int64_t num_layers = 0, hidden_size = 0, num_attention_heads = 0, num_query_groups = 0, kv_channels = 0;
  int64_t ffn_hidden_size = 0, padded_vocab_size = 0, seq_length = 0;
  int64_t num_mtp_layers = 0;  // multi-token prediction
  bool gated_linear_unit = false;
  bool attention_output_gate = false;
  bool rms_norm = false;
  bool linear_bias = false;
  bool tied_embedding = true;
  std::optional<LatentAttention> latent = std::nullopt;
  std::optional<Experts> experts = std::nullopt;
  std::optional<LinearAttention> linear = std::nullopt;
  std::optional<HybridLayers> hybrid = std::nullopt;
};

// `padded_vocab_size` as in the table (config::padded_vocab_size). Derived fields of the config are resolved here.
ModelShape model_shape(const config::Config& config, int64_t padded_vocab_size);

}  // namespace metroplex::sim
