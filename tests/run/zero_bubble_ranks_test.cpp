// Schedules with weight actions equal one rank: three optimizer steps in float64 with dropout. Losses to 1e-12
// relative, parameters to 1e-10 (reasons in verify/verify.h).
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "config/load.h"
#include "run/run_layouts.h"
#include "support/everyday.h"

namespace metroplex::run::zero_bubble_ranks_test {
namespace {

constexpr const char* kNames[] = {"zb_h1", "zb_h2", "zb_v", "dualpipe_v", "searched"};

struct Layout {
  int64_t tp = 1, pp = 2, dp = 1, microbatches = 4;
  const char* sharding = "no_shard";
  int64_t ranks() const { return tp * pp * dp; }
};
// Odd numbers of microbatches, one microbatch, ZeRO 1 to 3, sequence parallelism with tp.
constexpr Layout kLayouts[] = {{1, 2, 1, 5},
                               {1, 4, 1, 8},
                               {2, 2, 1, 4},
                               {1, 3, 2, 1, "optim"},
                               {1, 2, 2, 3, "optim_grads"},
                               {1, 2, 2, 4, "optim_grads_params"}};

config::Config with_layout(config::Config config, const std::string& schedule, const Layout& layout) {
  config::Parallel& parallel = config.parallel;
  parallel.pipeline_schedule = config::Choice<config::Schedule>(schedule);
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.sequence_parallel = layout.tp > 1;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.virtual_pipeline_model_parallel_size = config::is_v_shaped(parallel.pipeline_schedule, 1) ? 2 : 1;
  parallel.data_parallel_sharding_strategy = config::Choice<config::ShardingStrategy>(layout.sharding);
  parallel.ddp_bucket_size = 2000;
  config.train.global_batch_size = layout.microbatches * layout.dp * config.train.micro_batch_size;
  return for_ranks(config, layout.ranks());
}

void check(size_t share, const std::string& yaml) {
  const config::Config base = config::parse(yaml);
  std::map<int64_t, verify::LayoutRun> references;
  std::vector<std::pair<std::string, Layout>> cases;
  for (const std::string schedule : kNames) {
    for (const Layout& layout : kLayouts) cases.emplace_back(schedule, layout);
  }
  for (const auto& [schedule, layout] : test::sample_cases(cases, share)) {
    SCOPED_TRACE(schedule + " tp " + std::to_string(layout.tp) + " pp " + std::to_string(layout.pp) + " dp " +
                 std::to_string(layout.dp) + " m " + std::to_string(layout.microbatches) + " " + layout.sharding);
    expect_equals_single_rank(with_layout(base, schedule, layout), layout.ranks(), references);
  }
}

TEST(ZeroBubbleEqualsOneRank, GptWithTiedHeadAndDropout) {
  check(1,
        "model: {family: gpt, num_layers: 24, hidden_size: 16, num_attention_heads: 4, vocab_size: 50,"
        " make_vocab_size_divisible_by: 8, attention_dropout: 0.1, hidden_dropout: 0.1}\n"
        "train: {seq_length: 8, micro_batch_size: 1}\n"
        "optim: {lr: 1.0e-3, clip_grad: 0.5}\n");
}

TEST(ZeroBubbleEqualsOneRank, LlamaWithRecomputation) {
  check(3,
        "model: {family: llama, num_layers: 24, hidden_size: 16, num_attention_heads: 4, num_query_groups: 2,"
        " ffn_hidden_size: 24, vocab_size: 50, make_vocab_size_divisible_by: 8, qk_layernorm: true}\n"
        "train: {seq_length: 8, micro_batch_size: 2}\n"
        "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}\n"
        "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Multi-token prediction, adapters, frozen layers, context parallelism, latent attention, and stages without layers.
TEST(ZeroBubbleEqualsOneRank, OtherModelsAndStages) {
  const std::string v2 = "parallel.pipeline_model_parallel_size=2;parallel.virtual_pipeline_model_parallel_size=2;";
  const std::string latent =
      "model.position_embedding_type=rope;model.multi_latent_attention=true;model.kv_lora_rank=10;"
      "model.qk_head_dim=6;model.qk_pos_emb_head_dim=4;model.v_head_dim=5;";
  struct Model {
    std::string settings;
    int64_t ranks;
  };
  const std::vector<Model> models = {
      {"model.mtp_num_layers=1;parallel.pipeline_model_parallel_size=2;parallel.pipeline_schedule=zb_h1", 2},
      {"model.mtp_num_layers=1;" + v2 + "parallel.pipeline_schedule=zb_v", 2},
      {"peft.lora_rank=2;" + v2 + "parallel.pipeline_schedule=dualpipe_v", 2},
      {"peft.lora_rank=2;parallel.tensor_model_parallel_size=2;parallel.sequence_parallel=true;"
       "parallel.pipeline_model_parallel_size=2;parallel.pipeline_schedule=zb_h1",
       4},
      {"train.freeze=decoder.layers.1.*;parallel.pipeline_model_parallel_size=2;parallel.pipeline_schedule=zb_h2", 2},
      {"parallel.context_parallel_size=2;" + v2 + "parallel.pipeline_schedule=zb_v", 4},
      {latent + v2 + "parallel.pipeline_schedule=dualpipe_v", 2},
      {latent + v2 +
           "parallel.tensor_model_parallel_size=2;parallel.sequence_parallel=true;"
           "parallel.pipeline_schedule=zb_v;memory.recompute_granularity=selective;"
           "memory.recompute_modules=[mla_up_proj,layernorm]",
       4},
      {"parallel.pipeline_model_parallel_size=2;parallel.pipeline_model_parallel_layout=Ett|tt||L;"
       "parallel.pipeline_schedule=zb_v",
       2},
      {"parallel.pipeline_model_parallel_size=3;parallel.pipeline_model_parallel_layout=Etttt||L;"
       "parallel.pipeline_schedule=zb_h1;parallel.defer_embedding_wgrad_compute=true",
       3},
      {"memory.recompute_granularity=selective;memory.recompute_modules=[core_attn,mlp];"
       "parallel.pipeline_model_parallel_size=4;parallel.pipeline_schedule=zb_h2",
       4}};
  for (const Model& model : models) {
    SCOPED_TRACE(model.settings);
    std::vector<std::string> settings;
    std::istringstream stream(model.settings);
    for (std::string setting; std::getline(stream, setting, ';');) settings.push_back(setting);
    config::Config config = config::parse(
        "model: {family: llama, num_layers: 4, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 24,"
        " vocab_size: 50, make_vocab_size_divisible_by: 8, hidden_dropout: 0.1}\n"
        "train: {seq_length: 8, micro_batch_size: 1, global_batch_size: 5}\n"
        "parallel: {ddp_bucket_size: 2000}\n",
        settings);
    std::map<int64_t, verify::LayoutRun> references;
    expect_equals_single_rank(for_ranks(config, model.ranks), model.ranks, references);
  }
}

TEST(ZeroBubbleEqualsOneRank, ExpertsWithSharedExpert) {
  check(3,
        "model: {family: gpt, num_layers: 24, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
        " vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false, normalization: RMSNorm,"
        " num_moe_experts: 4, moe_router_topk: 2, moe_aux_loss_coeff: \"0.02\", moe_z_loss_coeff: 0.001,"
        " moe_shared_expert_intermediate_size: 8, init_method_std: 0.2}\n"
        "train: {seq_length: 8, micro_batch_size: 1}\n"
        "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

}  // namespace
}  // namespace metroplex::run::zero_bubble_ranks_test
