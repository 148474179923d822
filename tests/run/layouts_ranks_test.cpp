// Every layout of up to 8 ranks, with each pipeline schedule, equals one rank: three optimizer steps in float64 with
// dropout and some masked positions. Losses to 1e-12 relative, parameters to 1e-10 (reasons in verify/verify.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "config/load.h"
#include "config/validate.h"
#include "support/everyday.h"
#include "run/run_layouts.h"

namespace metroplex::run::layouts_ranks_test {
namespace {

struct Layout {
  int64_t tp, pp, vpp, dp;
  bool sp;
  const char* schedule = "auto";
  int64_t ranks() const { return tp * pp * dp; }
  // Four; with virtual stages a multiple of pp.
  int64_t microbatches() const { return vpp > 1 && 4 % pp != 0 ? 2 * pp : 4; }
};

config::Config gpt() {
  return config::parse(
      "model: {family: gpt, num_layers: 8, hidden_size: 32, num_attention_heads: 8, vocab_size: 50, "
      "make_vocab_size_divisible_by: 8,"
      " attention_dropout: 0.1, hidden_dropout: 0.1}\n"
      "train: {seq_length: 8, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, clip_grad: 0.5}\n");
}

config::Config llama() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 8, num_query_groups: 4, "
      "ffn_hidden_size: 48,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, qk_layernorm: true}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Six blocks and the top-query layer: with pp 3 and vpp 2 the last of six chunks holds both.
config::Config codegeex() {
  config::Config config = gpt();
  config.model.family = "codegeex";
  config.model.num_layers = 6;
  return config;
}

// Latent attention with all of its options.
config::Config latent() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 48,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, multi_latent_attention: true, q_lora_rank: 12,"
      " kv_lora_rank: 10, qk_head_dim: 6, qk_pos_emb_head_dim: 4, v_head_dim: 5, qk_layernorm: true,"
      " rotary_interleaved: true, rotary_scaling_factor: 4, original_max_position_embeddings: 8, mscale_all_dim: 1,"
      " add_qkv_bias: true, attention_dropout: 0.1}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Windows with their own rotary frequencies, caps, sinks, post-norms, clamped units.
config::Config windows() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 4, num_query_groups: 4,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, window_size: 2,"
      " window_attn_skip_freq: 3, rotary_base_local: 50, softmax_type: learnable, attn_logit_softcapping: 2,"
      " final_logit_softcapping: 1, scale_embeddings: true, apply_layernorm_1p: true, sandwich_norm: true,"
      " activation_func_clamp_value: 0.05, glu_linear_offset: 1, add_attention_output_bias: true, add_mlp_bias: true,"
      " hidden_dropout: 0.1, untie_embeddings_and_output_weights: false}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Norms after layers and over all heads, layers without rotary positions, multipliers.
config::Config norms() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 8, num_query_groups: 4,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, pre_norm: false, sandwich_norm: true,"
      " qk_layernorm: true, qk_layernorm_all_heads: true, no_rope_freq: 3, embedding_multiplier: 3,"
      " residual_multiplier: 0.4, logits_scaling: 2, add_attention_output_bias: true, add_mlp_bias: true,"
      " hidden_dropout: 0.1, untie_embeddings_and_output_weights: false}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Attention and MLP that read one LayerNorm without bias.
config::Config parallel() {
  config::Config config = norms();
  config.model.family = "gpt";
  config.model.normalization = config::Normalization::LayerNorm;
  config.model.pre_norm = config.model.parallel_attention_mlp = true;
  config.model.sandwich_norm = config.model.qk_layernorm_all_heads = config.model.add_norm_bias = false;
  return config;
}

// Chunks and norms without weights; every third layer has neither, no rotary positions, and scaled queries.
config::Config chunks() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 8, num_query_groups: 4,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, attention_chunk_size: 3,"
      " window_attn_skip_freq: 3, no_rope_freq: 3, qk_l2_norm: true, query_scaling_beta: 0.5,"
      " query_scaling_floor: 2, rotary_interleaved: true, hidden_dropout: 0.1}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Gated delta nets before each third layer, which has gated attention. Some chunks of the recurrence are not full.
config::Config delta_net() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 8, num_query_groups: 4,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, qk_layernorm: true,"
      " experimental_attention_variant: gated_delta_net, linear_attention_freq: 3, linear_num_key_heads: 4,"
      " linear_num_value_heads: 8, linear_key_head_dim: 5, linear_value_head_dim: 3, linear_conv_kernel_dim: 3,"
      " attention_output_gate: true, apply_layernorm_1p: true, rotary_percent: 0.5, hidden_dropout: 0.1}\n"
      "train: {seq_length: 72, micro_batch_size: 2}\n"
      "data: {reset_attention_mask: true}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Lightning attention before each third layer; norms are the residual stream, with factors.
config::Config lightning() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 8, num_query_groups: 4,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8,"
      " experimental_attention_variant: lightning_attention, linear_attention_freq: 3, lightning_chunk_size: 10,"
      " apply_residual_connection_post_layernorm: true, residual_stream_multiplier: 1.7, residual_multiplier: 0.8,"
      " residual_stream_multiplier_linear: 1.3, residual_multiplier_mlp: 1.2, hidden_dropout: 0.1}\n"
      "train: {seq_length: 24, micro_batch_size: 2}\n"
      "data: {reset_attention_mask: true}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Two multi-token prediction layers; the last stage reads the first stage's embedding.
config::Config ahead() {
  config::Config config = llama();
  config.model.mtp_num_layers = 2;
  config.model.mtp_loss_scaling_factor = 0.5;
  config.model.hidden_dropout = 0.1;
  return config;
}

// Layers with one sublayer each, with time steps on both sides of the lower limit.
config::Config hybrid() {
  return config::parse(
      "model: {family: llama, num_layers: 6, hidden_size: 32, num_attention_heads: 4, num_query_groups: 4,"
      " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, hybrid_layer_pattern: M-G*ML,"
      " linear_num_key_heads: 4, linear_num_value_heads: 8, linear_key_head_dim: 3, linear_value_head_dim: 5,"
      " mamba_num_groups: 4, mamba_num_heads: 8, mamba_head_dim: 5, mamba_state_dim: 6, mamba_chunk_size: 3,"
      " mamba_dt_min: 0.01, hidden_dropout: 0.1}\n"
      "train: {seq_length: 8, micro_batch_size: 2}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

std::vector<Layout> all_layouts(int64_t num_layers, int64_t max_tp) {
  std::vector<Layout> layouts;
  for (int64_t tp = 1; tp <= max_tp; tp *= 2) {
    for (int64_t pp = 1; tp * pp <= 8; ++pp) {
      for (int64_t vpp = 1; vpp <= num_layers; ++vpp) {
        if (num_layers % (pp * vpp) != 0 || (vpp > 1 && pp == 1)) continue;
        for (int64_t dp = 1; tp * pp * dp <= 8; ++dp) {
          for (const char* const schedule : list_schedules(pp, vpp)) {
            layouts.push_back({tp, pp, vpp, dp, false, schedule});
            if (tp > 1) layouts.push_back({tp, pp, vpp, dp, true, schedule});
          }
        }
      }
    }
  }
  return layouts;
}

config::Config with_layout(config::Config config, const Layout& layout) {
  config.parallel.tensor_model_parallel_size = layout.tp;
  config.parallel.pipeline_model_parallel_size = layout.pp;
  config.parallel.virtual_pipeline_model_parallel_size = layout.vpp;
  config.parallel.sequence_parallel = layout.sp;
  set_schedule(config.parallel, layout.schedule);
  config.parallel.ddp_bucket_size = 2000;  // several buckets, reduced while backward runs
  config.train.global_batch_size = layout.microbatches() * layout.dp * config.train.micro_batch_size;
  return for_ranks(config, layout.ranks());
}

void walk(const config::Config& base, int64_t num_layers, int64_t max_tp) {
  std::map<int64_t, verify::LayoutRun> references;  // by global batch size
  const auto layouts = all_layouts(num_layers, max_tp);
  ASSERT_GT(layouts.size(), 30u);
  for (const Layout& layout : test::sample_cases(layouts, 8)) {
    SCOPED_TRACE("tp " + std::to_string(layout.tp) + " pp " + std::to_string(layout.pp) + " vpp " +
                 std::to_string(layout.vpp) + " dp " + std::to_string(layout.dp) + (layout.sp ? " sp " : " ") +
                 layout.schedule);
    const config::Config config = with_layout(base, layout);
    expect_equals_single_rank(config, layout.ranks(), references);
  }
}

TEST(AnyLayoutEqualsOneRank, GptWithTiedHeadAndDropout) { walk(gpt(), 8, 8); }
TEST(AnyLayoutEqualsOneRank, LlamaWithGroupedQueries) { walk(llama(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, LatentAttentionWithYarn) { walk(latent(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, LatentHeadsAreMadeAgain) {
  config::Config config = latent();
  config.memory.recompute_granularity = config::Recompute::selective;
  config.memory.recompute_modules = {"mla_up_proj"};
  walk(config, 6, 4);
}
TEST(AnyLayoutEqualsOneRank, WindowsCapsAndSinks) { walk(windows(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, NormsAfterLayersAndMultipliers) { walk(norms(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, ParallelAttentionAndMlp) { walk(parallel(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, ChunksAndNormsWithoutWeights) { walk(chunks(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, GatedDeltaNetAndGatedAttention) { walk(delta_net(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, LightningAttentionAndResidualOfNorms) { walk(lightning(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, MambaAttentionAndMlp) { walk(hybrid(), 6, 4); }
TEST(AnyLayoutEqualsOneRank, MultiTokenPrediction) { walk(ahead(), 6, 4); }
// Prediction layers in a stage before that of the loss: alone, after other layers, on the rank of the loss, with an
// empty stage between.
TEST(AnyLayoutEqualsOneRank, MultiTokenPredictionBeforeTheStageOfTheLoss) {
  struct Apart {
    const char* text;
    Layout layout;
    bool tied;
  };
  const Apart cases[] = {{"Ett|tttt|mm|L", {1, 4, 1, 1, false}, false},
                         {"Ettttttmm|L", {2, 2, 1, 2, true}, true},
                         {"Etttt|tt|mm|L", {2, 2, 2, 1, false}, true},
                         {"Ettttttmm||L", {1, 3, 1, 2, false}, false},
                         {"Ett|tttt||||mmL", {1, 3, 2, 1, false}, true}};
  std::map<int64_t, verify::LayoutRun> untied, tied;
  for (const Apart& apart : cases) {
    SCOPED_TRACE(apart.text);
    config::Config base = ahead();
    base.model.untie_embeddings_and_output_weights = !apart.tied;
    base.parallel.pipeline_model_parallel_layout = apart.text;
    expect_equals_single_rank(with_layout(base, apart.layout), apart.layout.ranks(), apart.tied ? tied : untied);
  }
}

TEST(AnyLayoutEqualsOneRank, CodegeexWithItsTopQueryAndDropout) { walk(codegeex(), 6, 4); }

TEST(AnyLayoutEqualsOneRank, TheWalksContainOddSizes) {
  const auto layouts = all_layouts(6, 4);
  const auto contains = [&](const Layout& wanted) {
    return std::any_of(layouts.begin(), layouts.end(), [&](const Layout& layout) {
      return layout.tp == wanted.tp && layout.pp == wanted.pp && layout.vpp == wanted.vpp && layout.dp == wanted.dp &&
             layout.sp == wanted.sp;
    });
  };
  EXPECT_TRUE(contains({1, 3, 2, 2, false}));
  EXPECT_TRUE(contains({2, 3, 2, 1, true}));
  EXPECT_TRUE(contains({2, 1, 1, 3, true}));
  EXPECT_TRUE(contains({1, 1, 1, 5, false}));
}

TEST(AnyLayoutEqualsOneRank, ThreeStepsReallyTrain) {
  const config::Config config = with_layout(llama(), {1, 1, 1, 1, false});
  const verify::LayoutRun three = run_layout_on(config, 1);
  ASSERT_EQ(three.losses.size(), 3u);
  EXPECT_NE(three.losses[0], three.losses[1]);
  EXPECT_GT(three.grad_norms[0], 0.01);
}

}  // namespace
}  // namespace metroplex::run::layouts_ranks_test
