// The shape of the network. Names are Megatron's (TransformerConfig); 0 means "derived", see validate.h.
#pragma once

#include <cstdint>
#include <string>

namespace metroplex::config {

struct Model {
  std::string family = "gpt";  // gpt | codegeex | llama: one line of models/registry.cpp each
  int64_t num_layers = 4;
  int64_t hidden_size = 256;
  int64_t num_attention_heads = 4;
  int64_t num_query_groups = 0;  // 0: one group a head (no GQA)
  int64_t kv_channels = 0;       // 0: hidden_size / num_attention_heads
  int64_t ffn_hidden_size = 0;   // 0: 4h, or int(8h/3/64)*64 with gated_linear_unit (Megatron's --swiglu)
  int64_t vocab_size = 0;        // 0: the tokenizer's; the table is padded, see padded_vocab_size
  int64_t make_vocab_size_divisible_by = 128;
  int64_t max_position_embeddings = 0;                       // 0: train.seq_length
  std::string position_embedding_type = "learned_absolute";  // learned_absolute | rope | none
  double rotary_base = 10000.0;
  double rotary_percent = 1.0;
  std::string normalization = "LayerNorm";  // LayerNorm | RMSNorm
  double layernorm_epsilon = 1e-5;
  std::string activation = "gelu";  // gelu (exact erf) | gelu_tanh | quick_gelu | silu | relu | squared_relu
  bool gated_linear_unit = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;  // with add_bias_linear off: bias on linear_qkv alone
  bool qk_layernorm = false;
  bool untie_embeddings_and_output_weights = false;
  double attention_dropout = 0.0;
  double hidden_dropout = 0.0;
  double init_method_std = 0.02;
  bool sharded_initialization =
      false;  // false: every layout starts from the same weights; true: Megatron's seed per tp/pp/ep rank

  bool tied() const { return !untie_embeddings_and_output_weights; }
};

}  // namespace metroplex::config
