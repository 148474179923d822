// Bytes that an expert layer holds between forward and backward under each form of recompute. A family with one
// data-parallel rank must cost the same with and without ZeRO.
#include "device/memory_meter.h"
#include "pipeline/stage.h"
#include "support/without_onednn.h"
#include "run/memory_yaml.h"
#include "forecast/predict.h"
#include "run/support.h"

namespace metroplex::test {
namespace {

constexpr int64_t kHidden = 32, kHeads = 4, kTokens = 16 * 2;

config::Config make_config(int64_t layers, const std::string& model, const std::string& memory) {
  return config::parse(base::concat("model: {family: gpt, num_layers: ", layers, ", hidden_size: ", kHidden,
                                    ", num_attention_heads: ", kHeads,
                                    ", ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8,"
                                    " add_bias_linear: false, num_moe_experts: 4, ",
                                    model,
                                    "}\n"
                                    "train: {seq_length: 16, micro_batch_size: 2, global_batch_size: 2,"
                                    " train_iters: 10}\n"
                                    "data: {mock_data: true}\n",
                                    memory));
}

// Bytes of the whole stage, between forward and backward of a microbatch.
int64_t held_bytes(const config::Config& asked) {
  const WithoutOneDnn without;
  const config::Config config = cut(asked, {});
  int64_t held = 0;
  run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const nn::Microbatch batch = make_batch(config.train, 0, 0);
    const device::MemoryMeter meter;
    pipeline::StageRun run;
    const nn::Values out = assembly->model.stages[0]->forward({}, batch, &run);
    held = meter.bytes();
  });
  return held;
}
// Bytes of one layer: the difference between two layers and one.
int64_t held_by_layer(const std::string& model, const std::string& memory) {
  return held_bytes(make_config(2, model, memory)) - held_bytes(make_config(1, model, memory));
}

const std::string kShared = ", moe_shared_expert_intermediate_size: 24, moe_shared_expert_gate: true";

// Up to the sum after attention: the block's input, its norm, q, k, v, attention and the sum; two statistics of the
// norm, logsumexp of each head.
TEST(ExpertsMemoryRanks, ARecomputedLayerOfExpertsHoldsNoMoreThanItsInput) {
  const int64_t row = kHidden * 4, statistics = 2 * 4;
  const int64_t attention = kTokens * (7 * row + statistics + kHeads * 4);
  for (const std::string topk : {"2", "4"}) {
    for (const std::string& model : {"moe_router_topk: " + topk, "moe_router_topk: " + topk + kShared}) {
      SCOPED_TRACE(model);
      EXPECT_EQ(held_by_layer(model, selective_recompute("moe")), attention);
      EXPECT_EQ(held_by_layer(model, selective_recompute("moe, layernorm")), attention - kTokens * row);
      EXPECT_GT(held_by_layer(model, ""), attention + kTokens * row * (1 + std::stoi(topk)));
    }
  }
}

TEST(ExpertsMemoryRanks, RecomputedNormsAreHeldBeforeExpertsNoMoreThanBeforeAttention) {
  for (const std::string& model : {std::string("moe_router_topk: 2"), "moe_router_topk: 2" + kShared}) {
    SCOPED_TRACE(model);
    EXPECT_EQ(held_by_layer(model, "") - held_by_layer(model, selective_recompute("layernorm")),
              2 * kTokens * kHidden * 4);
  }
}

// One data-parallel rank: no rank to shard over.
TEST(ExpertsMemoryRanks, ZeroOnOneRankHoldsWhatNoZeroHolds) {
  const auto predicted = [](const std::string& strategy) {
    config::Config config = make_config(4, "moe_router_topk: 2", zero(strategy));
    config.train.global_batch_size = 4;  // two microbatches
    config = cut(config, {});
    return forecast::step_bytes(forecast::predict_memory({config, 1, 0, kVocab}));
  };
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"})
    EXPECT_EQ(predicted(strategy), predicted("no_shard")) << strategy;
}

// The trace runs every operator of a layer on the meta device, with the counts of its rows.
TEST(ExpertsMemoryRanks, EveryOverflowPolicyIsPredicted) {
  for (const std::string policy : {"redo", "drop", "stop"}) {
    for (const config::CudaGraphImpl graphs :
         {config::CudaGraphImpl::none, config::CudaGraphImpl::transformer_engine}) {
      config::Config config = make_config(
          2,
          "moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 1, moe_overflow_policy: " +
              policy,
          "parallel: {expert_model_parallel_size: 2}\n");
      config.train.global_batch_size = 4;
      config.train.log_experts_interval = 1;
      config.train.cuda_graph_impl = graphs;
      config = cut(config, TestLayout{.dp = 2});
      EXPECT_GT(forecast::predict_memory({config, 2, 0, kVocab}).use.activations, 0) << policy;
    }
  }
}

}  // namespace
}  // namespace metroplex::test
