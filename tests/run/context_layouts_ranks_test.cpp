// Context parallelism on layouts of up to 8 ranks against one rank: every exchange and sequence split, with one
// document and packed documents. Three optimizer steps in float64 with some masked positions. Losses to 1e-12
// relative, parameters to 1e-10 (reasons in verify/verify.h).
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "support/everyday.h"
#include "run/run_layouts.h"

namespace metroplex::run::context_layouts_ranks_test {
namespace {

using config::SequenceCutKind;

struct ContextLayout {
  int64_t tp = 1, cp = 2, pp = 1, vpp = 1, dp = 1, ep = 1;
  SequenceCutKind cut = SequenceCutKind::zigzag;
  const char* exchange = "p2p";
  config::ShardingStrategy sharding = config::ShardingStrategy::no_shard;
  bool slack = false;
  const char* schedule = "auto";
  int64_t ranks() const { return tp * cp * pp * dp; }
  std::string text() const {
    return base::concat("tp ", tp, " cp ", cp, " pp ", pp, " vpp ", vpp, " dp ", dp, " ep ", ep, " ",
                        config::text_of(cut), " ", exchange, " ", config::text_of(sharding), slack ? " slack " : " ",
                        schedule);
  }
};

// All dropout options, learned positions, a tied head.
config::Config gpt(bool documents) {
  config::Config config = config::parse(
      "model: {family: gpt, num_layers: 4, hidden_size: 32, num_attention_heads: 8, vocab_size: 50, "
      "make_vocab_size_divisible_by: 8, attention_dropout: 0.1, hidden_dropout: 0.1}\n"
      "train: {seq_length: 32, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, clip_grad: 0.5}\n");
  config.data.reset_attention_mask = config.data.reset_position_ids = documents;
  return config;
}

// Fewer query groups than context-parallel ranks, samples whose documents differ but are split alike, a mean over
// tokens.
config::Config llama(bool documents) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 4, hidden_size: 32, num_attention_heads: 16, num_query_groups: 2, "
      "ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, qk_layernorm: true}\n"
      "train: {seq_length: 32, micro_batch_size: 2, calculate_per_token_loss: true}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
  config.data.reset_attention_mask = documents;
  return config;
}

// Values with another head size than keys, a key shared by all heads.
config::Config latent(bool documents) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 4, hidden_size: 32, num_attention_heads: 16, ffn_hidden_size: 48,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, multi_latent_attention: true, q_lora_rank: 12,"
      " kv_lora_rank: 10, qk_head_dim: 4, qk_pos_emb_head_dim: 2, v_head_dim: 3, qk_layernorm: true,"
      " rotary_interleaved: true, rotary_scaling_factor: 4, original_max_position_embeddings: 16,"
      " attention_dropout: 0.1}\n"
      "train: {seq_length: 32, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
  config.data.reset_attention_mask = documents;
  if (documents) {
    config.memory.recompute_granularity = config::Recompute::selective;
    config.memory.recompute_modules = {"mla_up_proj"};
  }
  return config;
}

// Windows shorter and longer than a rank's region of the sequence, capped scores.
config::Config windows(bool documents) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 4, hidden_size: 32, num_attention_heads: 16, num_query_groups: 8,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, window_attn_skip_freq: 4,"
      " attn_logit_softcapping: 2, rotary_base_local: 50}\n"
      "train: {seq_length: 32, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
  config.model.window_size = documents ? 11 : 3;
  config.data.reset_attention_mask = documents;
  return config;
}

// Chunks shorter and longer than a rank's region of the sequence, scaled queries in the other layers.
config::Config chunks(bool documents) {
  config::Config config = windows(documents);
  config.model.window_size = -1, config.model.attn_logit_softcapping = 0;
  config.model.attention_chunk_size = documents ? 11 : 3;
  config.model.no_rope_freq = "4", config.model.qk_l2_norm = true;
  config.model.query_scaling_beta = 0.5, config.model.query_scaling_floor = 7;
  return config;
}

// Norms over all heads after layers, layers without rotary positions, multipliers.
config::Config norms(bool documents) {
  config::Config config = llama(documents);
  config.model.num_query_groups = 8;
  config.model.pre_norm = false;
  config.model.sandwich_norm = config.model.qk_layernorm_all_heads = true;
  config.model.no_rope_freq = "2", config.model.residual_multiplier = 0.4, config.model.logits_scaling = 2;
  config.model.rope_type = config::RopeType::yarn, config.model.query_scaling_beta = documents ? 0 : 0.5;
  config.model.original_max_position_embeddings = 8, config.model.rotary_scaling_factor = 4;
  return config;
}

// Gated delta nets, which exchange rows for heads, and gated attention.
config::Config delta_net(bool documents) {
  config::Config config = llama(documents);
  config::Model& model = config.model;
  model.num_query_groups = 8;
  model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
  model.linear_attention_freq = "[1,0,1,1]", model.linear_conv_kernel_dim = 3;
  model.linear_num_key_heads = 8, model.linear_key_head_dim = 5;
  model.linear_num_value_heads = 16, model.linear_value_head_dim = 3;
  model.attention_output_gate = true;
  return config;
}

// Lightning attention, which exchanges rows for heads, and a residual stream of norms.
config::Config lightning(bool documents) {
  config::Config config = llama(documents);
  config::Model& model = config.model;
  model.num_query_groups = 8;
  model.experimental_attention_variant = config::AttentionVariant::lightning_attention;
  model.linear_attention_freq = "[1,0,1,1]", model.lightning_chunk_size = 5;
  model.apply_residual_connection_post_layernorm = true, model.residual_stream_multiplier = 1.7;
  return config;
}

// Multi-token prediction: following tokens are on other ranks. The prediction layers copy the window of the last
// layer.
config::Config ahead(bool documents) {
  config::Config config = windows(documents);
  config.model.window_attn_skip_freq = "[1,0,0,1]";
  config.model.mtp_num_layers = 2, config.model.mtp_loss_scaling_factor = 0.5;
  config.model.hidden_dropout = 0.1;
  config.train.micro_batch_size = 2;
  return config;
}

// Mamba-2 and a gated delta net around attention.
config::Config hybrid(bool documents) {
  config::Config config = llama(documents);
  config.model.hybrid_layer_pattern = "M*GM";
  config.model.linear_num_key_heads = config.model.linear_num_value_heads = 8;
  config.model.linear_key_head_dim = 5, config.model.linear_value_head_dim = 3;
  config.model.mamba_num_groups = 8, config.model.mamba_num_heads = 16, config.model.mamba_head_dim = 3;
  config.model.mamba_state_dim = 4, config.model.mamba_chunk_size = 5;
  return config;
}

config::Config codegeex(bool documents) {
  config::Config config = gpt(documents);
  config.model.family = "codegeex";
  return config;
}

// An auxiliary loss over microbatches, one over sequences, and the z-loss.
config::Config experts(bool documents) {
  config::Config config = config::parse(
      "model: {family: mixtral, num_layers: 4, hidden_size: 16, num_attention_heads: 8, num_query_groups: 4,"
      " ffn_hidden_size: 24, moe_ffn_hidden_size: 16, vocab_size: 50, make_vocab_size_divisible_by: 8,"
      " num_moe_experts: 8, moe_router_load_balancing_type: \"aux_loss,seq_aux_loss\","
      " moe_aux_loss_coeff: \"0.02,0.01\", moe_z_loss_coeff: 0.001, hidden_dropout: 0.1, attention_dropout: 0.1,"
      " init_method_std: 0.2}\n"
      "train: {seq_length: 32, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, clip_grad: 0.5}\n");
  config.data.reset_attention_mask = documents;
  return config;
}

constexpr config::ShardingStrategy kStrategies[] = {
    config::ShardingStrategy::no_shard, config::ShardingStrategy::optim, config::ShardingStrategy::optim_grads,
    config::ShardingStrategy::optim_grads_params};

// For every layout each exchange, one that differs by layer, and each schedule; the ZeRO stages alternate.
std::vector<ContextLayout> all_layouts(bool with_experts) {
  std::vector<ContextLayout> layouts;
  for (const int64_t cp : {2, 4, 8}) {
    for (int64_t tp = 1; tp <= 2; ++tp) {
      for (const auto& [pp, vpp] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {2, 2}, {4, 1}}) {
        for (int64_t dp = 1; tp * cp * pp * dp <= 8; ++dp) {
          for (const SequenceCutKind cut :
               {SequenceCutKind::zigzag, SequenceCutKind::contiguous, SequenceCutKind::balanced}) {
            for (const char* exchange : {"p2p", "all_gather", "a2a", "a2a+p2p", "a2a,p2p,all_gather,a2a+p2p"}) {
              const int64_t ep = !with_experts ? 1 : layouts.size() % 2 == 0 ? tp * cp : cp / 2;
              for (const char* const schedule : list_schedules(pp, vpp)) {
                layouts.push_back({tp, cp, pp, vpp, dp, ep, cut, exchange,
                                   kStrategies[layouts.size() % std::size(kStrategies)], layouts.size() % 2 == 0,
                                   schedule});
              }
            }
          }
        }
      }
    }
  }
  return layouts;
}

config::Config with_layout(config::Config config, const ContextLayout& layout) {
  config::Parallel& parallel = config.parallel;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.context_parallel_size = layout.cp;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.virtual_pipeline_model_parallel_size = layout.vpp;
  parallel.expert_model_parallel_size = layout.ep;
  if (layout.ep > 1) parallel.expert_tensor_parallel_size = 1;
  parallel.sequence_parallel = layout.tp > 1;
  set_schedule(parallel, layout.schedule);
  parallel.context_parallel_cut = layout.cut;
  // Half of the balanced splits allow ranks to differ in tokens, by two of at least four.
  if (layout.cut == SequenceCutKind::balanced && layout.slack)
    parallel.context_parallel_token_slack = parallel.context_parallel_area_slack = 0.5;
  parallel.cp_comm_type = layout.exchange;
  if (parallel.cp_comm_type.find("a2a+p2p") != std::string::npos)
    parallel.hierarchical_context_parallel_sizes = "2," + std::to_string(layout.cp / 2);
  parallel.data_parallel_sharding_strategy = layout.sharding;
  parallel.ddp_bucket_size = 2000;
  config.train.global_batch_size = 4 * layout.dp * config.train.micro_batch_size;
  return for_ranks(config, layout.ranks());
}

void walk(config::Config (*make)(bool documents), size_t share) {
  for (const bool documents : {false, true}) {
    const config::Config base = make(documents);
    std::map<int64_t, verify::LayoutRun> references;  // by global batch size
    const std::vector<ContextLayout> layouts = all_layouts(base.model.has_experts());
    ASSERT_GT(layouts.size(), 150u);
    for (const ContextLayout& layout : test::sample_cases(layouts, share)) {
      SCOPED_TRACE(layout.text() + (documents ? ", documents" : ""));
      expect_equals_single_rank(with_layout(base, layout), layout.ranks(), references);
    }
  }
}

TEST(ContextParallelEqualsOneRank, GptWithTiedHeadAndDropout) { walk(gpt, 40); }
TEST(ContextParallelEqualsOneRank, LlamaWithGroupedQueriesPerToken) { walk(llama, 40); }
TEST(ContextParallelEqualsOneRank, CodegeexWithItsTopQuery) { walk(codegeex, 60); }
TEST(ContextParallelEqualsOneRank, LatentAttention) { walk(latent, 60); }
TEST(ContextParallelEqualsOneRank, WindowsAndCaps) { walk(windows, 60); }
TEST(ContextParallelEqualsOneRank, ChunksAndScaledQueries) { walk(chunks, 40); }
TEST(ContextParallelEqualsOneRank, NormsOverAllHeads) { walk(norms, 20); }
TEST(ContextParallelEqualsOneRank, GatedDeltaNetAndGatedAttention) { walk(delta_net, 30); }
TEST(ContextParallelEqualsOneRank, LightningAttention) { walk(lightning, 30); }
TEST(ContextParallelEqualsOneRank, MultiTokenPredictionWithWindows) { walk(ahead, 40); }
TEST(ContextParallelEqualsOneRank, Experts) { walk(experts, 60); }
TEST(ContextParallelEqualsOneRank, MambaAndAttention) { walk(hybrid, 60); }

// Precondition of the layouts above with a slack: the token counts do differ.
TEST(ContextParallelEqualsOneRank, WithASlackRanksDifferInTokens) {
  ContextLayout layout;
  layout.cp = 4, layout.cut = SequenceCutKind::balanced, layout.slack = true;
  const config::Config config = with_layout(gpt(true), layout);
  comm::run_threads(4, topology::RankGrid(4, config.parallel), {}, [&](const comm::World& world) {
    int uneven = 0, all = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (const nn::Microbatch& batch : verify::synthetic_batches(config, world, kVocab, step, at::kDouble)) {
        uneven += batch.sequence.rank_rows.empty() ? 0 : 1;
        ++all;
      }
    }
    EXPECT_GE(uneven, all / 3) << "of " << all;
  });
}

}  // namespace
}  // namespace metroplex::run::context_layouts_ranks_test
