// Expert keys that make a checkpoint incompatible.
#include "run/compatible.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "support/error_of.h"

namespace metroplex::test::compatible_test {
namespace {

// The keys that differ between a model with experts and the same model with `overrides`.
std::vector<std::string> keys_that_differ(const std::vector<std::string>& overrides) {
  const std::string base = "model: {num_layers: 4, num_moe_experts: 8, vocab_size: 50}\n";
  files::Manifest manifest;
  manifest.config_yaml = config::dump(config::parse(base));
  std::vector<std::string> keys;
  for (const auto& difference : run::model_differences(config::parse(base, overrides), nullptr, manifest))
    keys.push_back(difference.key);
  return keys;
}

TEST(Compatible, WhatOnlyBalancesOrPlacesExpertsMakesNoOtherModel) {
  for (const char* override : {"model.moe_aux_loss_coeff=0.1",
                               "model.moe_router_load_balancing_type=none",
                               "model.moe_z_loss_coeff=0.1",
                               "model.moe_input_jitter_eps=0.1",
                               "model.moe_router_bias_update_rate=0.1",
                               "model.moe_router_dtype=fp64",
                               "model.moe_expert_capacity_factor=1",
                               "model.moe_token_drop_policy=position",
                               "model.moe_token_dispatcher_type=allgather",
                               "model.moe_grouped_gemm=false",
                               "model.moe_router_force_load_balancing=true",
                               "model.moe_layer_freq=[1,1,1,1]",
                               "model.moe_enable_echo=true",
                               "model.moe_num_echo_experts=8",
                               "model.moe_echo_planner=exact",
                               "model.moe_echo_eps=0.1",
                               "model.moe_echo_recompute_expert_dispatch=true",
                               "model.moe_echo_expert_dispatch_overlap=false",
                               "model.moe_expert_rank_capacity_factor=2",
                               "model.moe_rank_pair_capacity_factor=2",
                               "model.moe_overflow_policy=drop"})
    EXPECT_EQ(keys_that_differ({override}), std::vector<std::string>{}) << override;
}

TEST(Compatible, AdaptersAgreeInAllButTheirDropout) {
  const std::string base = "model: {num_layers: 4, vocab_size: 50}\npeft: {lora_rank: 4}\n";
  files::Manifest manifest;
  manifest.config_yaml = config::dump(config::parse(base));
  const auto refusal = [&](const std::string& override) {
    return catch_error([&] { run::check_compatible(config::parse(base, {override}), nullptr, manifest, "/run"); });
  };
  EXPECT_EQ(refusal("peft.lora_dropout=0.5"), "");
  for (const char* override : {"peft.lora_rank=2", "peft.lora_alpha=9", "peft.use_rslora=true",
                               "peft.lora_target_modules=q_proj", "peft.modules_to_save=embed_tokens"}) {
    const std::string key = std::string(override).substr(0, std::string(override).find('='));
    EXPECT_NE(refusal(override).find(key + " is "), std::string::npos) << refusal(override);
  }
}

TEST(Compatible, WhatChangesTheFunctionOfExpertsMakesAnother) {
  for (const char* override : {"model.num_moe_experts=4", "model.moe_layer_freq=2", "model.moe_ffn_hidden_size=8",
                               "model.moe_router_topk=3", "model.moe_router_score_function=sigmoid",
                               "model.moe_router_pre_softmax=true", "model.moe_router_num_groups=2",
                               "model.moe_router_topk_scaling_factor=2", "model.moe_router_enable_expert_bias=true",
                               "model.moe_router_load_balancing_type=sinkhorn", "model.moe_apply_probs_on_input=true",
                               "model.moe_shared_expert_intermediate_size=8", "model.moe_shared_expert_gate=true"}) {
    const std::string key = std::string(override).substr(0, std::string(override).find('='));
    EXPECT_EQ(keys_that_differ({override}), std::vector<std::string>{key});
  }
}

}  // namespace
}  // namespace metroplex::test::compatible_test
