// Models whose ranks have whole blocks of rows and features in the tested layouts, so that products in 8 and 4 bits
// do not depend on the layout.
#pragma once

#include <string>

namespace metroplex::run {

// Gradients are not divided by the number of microbatches, which depends on the layout: before the first history,
// delayed scales round the gradients as they are.
inline const std::string kTrain =
    "train: {seq_length: 64, micro_batch_size: 2, global_batch_size: 8, calculate_per_token_loss: true}\n"
    "optim: {lr: 1.0e-3, clip_grad: 0.5}\n";

inline const std::string kDense =
    "model: {family: gpt, num_layers: 4, hidden_size: 128, num_attention_heads: 8, num_query_groups: 4,"
    " ffn_hidden_size: 128, vocab_size: 50, make_vocab_size_divisible_by: 8,"
    " init_method_std: 0.1}\n" +
    kTrain;

// With tp 2, every shard has a multiple of 128 features.
inline const std::string kWide =
    "model: {family: llama, num_layers: 2, hidden_size: 256, num_attention_heads: 4, num_query_groups: 2,"
    " ffn_hidden_size: 256, vocab_size: 50, make_vocab_size_divisible_by: 8, init_method_std: 0.1}\n" +
    kTrain;

// 32 rows of a microbatch for every expert and rank.
inline const std::string kExperts =
    "model: {family: gpt, num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 64,"
    " vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false, num_moe_experts: 4,"
    " moe_router_topk: 2, moe_router_load_balancing_type: none,"
    " moe_shared_expert_intermediate_size: 64, init_method_std: 0.1}\n" +
    kTrain;

}  // namespace metroplex::run
