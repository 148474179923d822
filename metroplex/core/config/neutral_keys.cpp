#include "config/neutral_keys.h"

#include <set>

#include "config/experts.h"

namespace metroplex::config {

bool is_neutral_key(const std::string& name) {
  static const std::set<std::string> kKeys{"from",
                                           "hf_model_type",
                                           "make_vocab_size_divisible_by",
                                           "attention_dropout",
                                           "hidden_dropout",
                                           "init_method_std",
                                           "sharded_initialization",
                                           "mamba_chunk_size",
                                           "lightning_chunk_size",
                                           "special_token_ids",
                                           "generation_config",
                                           "mtp_loss_scaling_factor",
                                           "moe_aux_loss_coeff",
                                           "moe_z_loss_coeff",
                                           "moe_input_jitter_eps",
                                           "moe_router_bias_update_rate",
                                           "moe_router_dtype",
                                           "moe_router_weight_in_fp32",
                                           "moe_router_force_load_balancing",
                                           "moe_router_force_skew",
                                           "moe_router_force_even",
                                           "moe_router_force_skew_period",
                                           "moe_router_force_trace",
                                           "moe_expert_capacity_factor",
                                           "moe_pad_expert_input_to_capacity",
                                           "moe_token_drop_policy",
                                           "moe_token_dispatcher_type",
                                           "moe_dispatch_fwd_dtype",
                                           "moe_combine_bwd_dtype",
                                           "moe_expert_rank_capacity_factor",
                                           "moe_rank_pair_capacity_factor",
                                           "moe_overflow_policy",
                                           "moe_grouped_gemm",
                                           "moe_shared_expert_overlap"};
  return kKeys.contains(name) || is_echo_key(name) || is_stash_key(name);
}

}  // namespace metroplex::config
