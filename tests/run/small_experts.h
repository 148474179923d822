// A small mixture of experts with all state that a repeated step must not count or sample twice: a bias, all losses,
// a shared expert with gate, jitter and dropout.
#pragma once

#include <string>

#include "run/support.h"

namespace metroplex::test {

// `more`: further keys of the model, each after a comma; `yaml`: further sections.
inline config::Config small_experts(const std::string& more = "", const std::string& yaml = "") {
  return with_small_settings(
      "model: {family: gpt, num_layers: 4, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false, normalization: RMSNorm,"
      " num_moe_experts: 4, moe_layer_freq: \"[1,0,1,1]\", moe_router_score_function: sigmoid,"
      " moe_router_enable_expert_bias: true, moe_router_load_balancing_type: "
      "\"aux_loss,seq_aux_loss,global_aux_loss\","
      " moe_aux_loss_coeff: \"0.02,0.01,0.01\", moe_z_loss_coeff: 0.001, moe_input_jitter_eps: 0.1,"
      " moe_shared_expert_intermediate_size: 8, moe_shared_expert_gate: true, hidden_dropout: 0.1,"
      " attention_dropout: 0.1, init_method_std: 0.2" +
      more + "}\n" + yaml);
}

}  // namespace metroplex::test
