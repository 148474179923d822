// Models with experts on every layout of up to 8 ranks, with every dispatcher, against one rank. Three optimizer
// steps in float64 with dropout and some masked positions. Dropless: losses to 1e-12 relative, parameters to 1e-10
// (reasons in verify/verify.h).
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "support/everyday.h"
#include "support/poisoned.h"
#include "run/run_layouts.h"

namespace metroplex::run::experts_layouts_ranks_test {
namespace {

using config::TokenDispatcher;

struct ExpertLayout {
  int64_t tp = 1, pp = 1, vpp = 1, dp = 1, etp = 1, ep = 1;
  TokenDispatcher dispatcher = TokenDispatcher::automatic;
  config::ShardingStrategy sharding = config::ShardingStrategy::no_shard;
  const char* schedule = "auto";
  int64_t ranks() const { return tp * pp * dp; }
  int64_t expert_ranks() const { return etp * ep; }
  int64_t microbatches() const { return vpp > 1 && 4 % pp != 0 ? 2 * pp : 4; }
  std::string text() const {
    return base::concat("tp ", tp, " pp ", pp, " vpp ", vpp, " dp ", dp, " etp ", etp, " ep ", ep, " ",
                        config::text_of(dispatcher), " ", config::text_of(sharding), " ", schedule);
  }
};

// One dense layer among expert layers, an auxiliary loss over microbatches and one over sequences, the z-loss.
config::Config softmax_experts() {
  return config::parse(
      "model: {family: mixtral, num_layers: 4, hidden_size: 16, num_attention_heads: 4, num_query_groups: 4,"
      " ffn_hidden_size: 24, moe_ffn_hidden_size: 16, vocab_size: 50, make_vocab_size_divisible_by: 8,"
      " num_moe_experts: 8, moe_layer_freq: \"[1,0,1,1]\", moe_router_load_balancing_type: \"aux_loss,seq_aux_loss\","
      " moe_aux_loss_coeff: \"0.02,0.01\", moe_z_loss_coeff: 0.001, hidden_dropout: 0.1, attention_dropout: 0.1,"
      " init_method_std: 0.2}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, clip_grad: 0.5}\n");
}

// Experts in every layer; groups, a bias instead of a loss, a shared expert with a gate, jitter.
config::Config sigmoid_experts() {
  return config::parse(
      "model: {family: gpt, num_layers: 4, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false, normalization: RMSNorm,"
      " num_moe_experts: 8, moe_router_topk: 2, moe_router_score_function: sigmoid, moe_router_num_groups: 4,"
      " moe_router_group_topk: 2, moe_router_topk_scaling_factor: 2.5, moe_router_enable_expert_bias: true,"
      " moe_router_load_balancing_type: none, moe_shared_expert_intermediate_size: 8, moe_shared_expert_gate: true,"
      " moe_input_jitter_eps: 0.1, init_method_std: 0.2}\n"
      "train: {seq_length: 8, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// As in Llama 4: experts with scaled inputs next to a shared expert in every other layer, chunks in three of four.
config::Config scaled_experts() {
  return config::parse(
      "model: {family: llama, num_layers: 4, hidden_size: 16, num_attention_heads: 4, num_query_groups: 4,"
      " ffn_hidden_size: 24, vocab_size: 50, make_vocab_size_divisible_by: 8, attention_chunk_size: 3,"
      " window_attn_skip_freq: 4, no_rope_freq: 4, qk_l2_norm: true, query_scaling_beta: 0.5, query_scaling_floor: 2,"
      " num_moe_experts: 8, moe_ffn_hidden_size: 16, moe_layer_freq: \"[0,1,0,1]\", moe_router_topk: 1,"
      " moe_router_score_function: sigmoid, moe_apply_probs_on_input: true, moe_router_load_balancing_type: none,"
      " moe_shared_expert_intermediate_size: 16, init_method_std: 0.2}\n"
      "train: {seq_length: 8, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Experts that work on projections, which have biases.
config::Config latent_experts() {
  config::Config config = sigmoid_experts();
  config.model.moe_latent_size = 6, config.model.add_mlp_bias = true;
  config.model.moe_shared_expert_intermediate_size = 0, config.model.moe_shared_expert_gate = false;
  return config;
}

// Layers with one sublayer each.
config::Config hybrid_experts() {
  config::Config config = sigmoid_experts();
  config.model.hybrid_layer_pattern = "ME*E";
  config.model.mamba_num_groups = 4, config.model.mamba_num_heads = 8, config.model.mamba_head_dim = 4;
  config.model.mamba_state_dim = 3, config.model.mamba_chunk_size = 3;
  return config;
}

std::vector<TokenDispatcher> dispatchers_for(int64_t expert_ranks) {
  if (expert_ranks == 1) return {TokenDispatcher::local, TokenDispatcher::alltoall};
  return {TokenDispatcher::allgather, TokenDispatcher::alltoall, TokenDispatcher::hierarchical};
}

constexpr config::ShardingStrategy kStrategies[] = {
    config::ShardingStrategy::no_shard, config::ShardingStrategy::optim, config::ShardingStrategy::optim_grads,
    config::ShardingStrategy::optim_grads_params};

// All dispatchers and schedules on every layout; the ZeRO stages alternate.
std::vector<ExpertLayout> all_layouts() {
  std::vector<ExpertLayout> layouts;
  for (int64_t tp = 1; tp <= 4; tp *= 2) {
    for (const auto& [pp, vpp] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {2, 2}, {4, 1}}) {
      for (int64_t dp = 1; tp * pp * dp <= 8; ++dp) {
        const int64_t places = tp * dp;
        for (int64_t etp = 1; etp <= 4; etp *= 2) {
          for (int64_t ep = 1; ep <= 8; ep *= 2) {
            if (places % (etp * ep) != 0) continue;
            for (const TokenDispatcher dispatcher : dispatchers_for(etp * ep)) {
              for (const char* const schedule : list_schedules(pp, vpp)) {
                const auto strategy = kStrategies[layouts.size() % std::size(kStrategies)];
                layouts.push_back({tp, pp, vpp, dp, etp, ep, dispatcher, strategy, schedule});
              }
            }
          }
        }
      }
    }
  }
  return layouts;
}

config::Config with_layout(config::Config config, const ExpertLayout& layout) {
  config::Parallel& parallel = config.parallel;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.virtual_pipeline_model_parallel_size = layout.vpp;
  parallel.expert_tensor_parallel_size = layout.etp;
  parallel.expert_model_parallel_size = layout.ep;
  const bool by_node = layout.dispatcher == TokenDispatcher::hierarchical;
  parallel.expert_ranks_per_node = !by_node ? 0 : layout.expert_ranks() % 2 == 0 ? 2 : 1;
  parallel.sequence_parallel = layout.tp > 1;
  set_schedule(parallel, layout.schedule);
  parallel.data_parallel_sharding_strategy = layout.sharding;
  parallel.ddp_bucket_size = 2000;
  config.model.moe_token_dispatcher_type = layout.dispatcher;
  config.train.global_batch_size = layout.microbatches() * layout.dp * config.train.micro_batch_size;
  return for_ranks(config, layout.ranks());
}

void walk(const config::Config& base, size_t share) {
  const test::NanFillGuard poisoned;
  std::map<int64_t, verify::LayoutRun> references;  // by global batch size
  const std::vector<ExpertLayout> layouts = all_layouts();
  ASSERT_GT(layouts.size(), 150u);
  for (const ExpertLayout& layout : test::sample_cases(layouts, share)) {
    SCOPED_TRACE(layout.text());
    expect_equals_single_rank(with_layout(base, layout), layout.ranks(), references);
  }
}

TEST(ExpertsOnAnyLayout, SoftmaxWithAuxiliaryLosses) { walk(softmax_experts(), 50); }
TEST(ExpertsOnAnyLayout, SigmoidInGroupsWithBiasAndSharedExpert) { walk(sigmoid_experts(), 50); }
TEST(ExpertsOnAnyLayout, ScaledInputsAndChunks) { walk(scaled_experts(), 100); }
TEST(ExpertsOnAnyLayout, ProjectedRows) { walk(latent_experts(), 100); }
TEST(ExpertsOnAnyLayout, LayersOfOneSublayer) { walk(hybrid_experts(), 100); }

}  // namespace
}  // namespace metroplex::run::experts_layouts_ranks_test
