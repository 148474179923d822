// Model FLOPs of a training step by Megatron's formula (num_floating_point_operations), and the model sizes it needs.
// It counts matrix products only: two operations per multiply-add, backward twice the forward, half of the causal
// score matrix. TFLOP/s per GPU: flops / (iteration seconds * 1e12 * ranks).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "config/layer_parts.h"

namespace metroplex::plan {

struct ExpertShape {
  int64_t num_experts = 0;
  int64_t router_topk = 0;
  int64_t ffn_hidden_size = 0;
  int64_t shared_ffn_hidden_size = 0;  // 0: no shared expert
  int64_t latent_size = 0;             // 0: routed experts have the width of the model
};

// Multi-head latent attention.
struct LatentShape {
  int64_t q_lora_rank = 0;  // 0: queries have no low-rank projection
  int64_t kv_lora_rank = 0, qk_head_dim = 0, qk_pos_emb_head_dim = 0, v_head_dim = 0;
};

struct DeltaNetShape {
  int64_t key_head_dim = 128, value_head_dim = 128;
  int64_t num_key_heads = 16, num_value_heads = 32;
  int64_t conv_kernel_dim = 4;
};

struct MambaShape {
  int64_t heads = 0, head_dim = 0, num_groups = 0, state_dim = 0;
};

struct ModelShape {
  std::vector<config::LayerParts> layers;  // then the multi-token prediction layers
  int64_t hidden_size = 0, num_attention_heads = 0, num_query_groups = 0, kv_channels = 0;
  int64_t ffn_hidden_size = 0, padded_vocab_size = 0, seq_length = 0;
  bool gated_linear_unit = false;
  bool linear_bias = false;
  bool attention_output_gate = false;
  int64_t mtp_num_layers = 0;  // each also has a projection of two hidden sizes
  int64_t num_outputs = 1;     // products of the output layer: one, and one per multi-token prediction layer
  std::optional<ExpertShape> experts = std::nullopt;
  std::optional<LatentShape> latent = std::nullopt;
  std::optional<DeltaNetShape> delta_net = std::nullopt;
  std::optional<MambaShape> mamba = std::nullopt;

  int64_t count(bool config::LayerParts::*part) const;
};

// `padded_vocab_size` is that of the embedding table (config::padded_vocab_size). Derived fields of the config are
// resolved here.
ModelShape model_shape(const config::Config& config, int64_t padded_vocab_size);

struct StepTokens {
  int64_t batch_size = 1;  // global batch, in sequences
  // For packed or short sequences. num_tokens excludes padding (default batch_size * seq_length). squared_length_sum
  // is the sum of length^2 over documents (default batch_size * seq_length^2).
  std::optional<double> num_tokens = std::nullopt;
  std::optional<double> squared_length_sum = std::nullopt;
};

// Returns the FLOPs of forward and backward of one global batch.
double step_flops(const ModelShape& shape, const StepTokens& tokens);

// Returns the same model with every token routed to all experts.
ModelShape with_all_experts(ModelShape shape);
// Returns the parameters of the experts that a token is not routed to, over all layers. Active parameters are the
// total minus these.
int64_t idle_parameters(const ModelShape& shape);

}  // namespace metroplex::plan
