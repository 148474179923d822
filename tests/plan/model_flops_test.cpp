#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/model_flops.h"
#include "support/megatron_flops.h"
#include "support/theoretical_memory.h"

namespace metroplex::test::model_flops_test {
namespace {

using plan::model_shape;
using plan::step_flops;

constexpr config::LayerParts kDense{.attention = true, .mlp = true}, kSparse{.attention = true, .experts = true};

MegatronShape small() {
  MegatronShape shape;
  shape.num_layers = 2;
  shape.layers = {kDense, kDense};
  shape.hidden_size = 8;
  shape.num_attention_heads = 2;
  shape.num_query_groups = 2;
  shape.kv_channels = 4;
  shape.ffn_hidden_size = 32;
  shape.padded_vocab_size = 100;
  shape.seq_length = 16;
  return shape;
}

// A float64 sum of a few products: any order agrees to 1e-12.
void expect_same(double got, double expected) { EXPECT_NEAR(got, expected, 1e-12 * expected); }

TEST(Flops, AreThoseOfTheMatrixProductsCountedByHand) {
  // A layer: qkv 8x24, projection 8x8, feed-forward 8x32 twice; scores and values over half of 16x16, 8 channels.
  const double layer = 16 * (8 * 24 + 8 * 8 + 2 * 8 * 32) + 2 * (16.0 * 16 / 2) * 8;
  const double step = 3 * 2 * 3 * (2 * layer + 16 * 8 * 100);
  expect_same(step_flops(small(), {.batch_size = 3}), step);
}

TEST(Flops, GrowLinearlyWithTheBatchAndDropWithPacking) {
  const auto shape = small();
  expect_same(step_flops(shape, {.batch_size = 6}), 2 * step_flops(shape, {.batch_size = 3}));
  EXPECT_LT(step_flops(shape, {.batch_size = 3, .squared_length_sum = 100}), step_flops(shape, {.batch_size = 3}));
}

TEST(Flops, RejectAnUnknownLayer) {
  auto shape = small();
  shape.hybrid = HybridLayers{.pattern = "*M?"};
  EXPECT_THROW(megatron_flops(shape, {}), base::Error);
  shape.hybrid->pattern = "*E";
  EXPECT_THROW(megatron_flops(shape, {}), base::Error) << "experts without their sizes";
}

TEST(Flops, LayersForMultiTokenPrediction) {
  const double attention = 16 * (8 * 24 + 8 * 8) + 2 * (16.0 * 16 / 2) * 8, head = 16 * 8 * 100;
  const double joined = 16 * (3 * 8 + 2 * 8 * 8);
  for (const bool last : {false, true}) {
    auto shape = small();
    shape.experts = plan::ExpertShape{.num_experts = 4, .router_topk = 1, .ffn_hidden_size = 8};
    shape.layers = {last ? kDense : kSparse, last ? kSparse : kDense};
    const double without = step_flops(shape, {.batch_size = 3});
    const int64_t idle = plan::idle_parameters(shape);
    shape.mtp_num_layers = 1, shape.num_outputs = 2;
    shape.layers.push_back(shape.layers.back());
    const double feed_forward = 16 * 2 * 8 * (last ? 8.0 : 32.0);
    expect_same(step_flops(shape, {.batch_size = 3}) - without,
                3 * 2 * 3 * (attention + feed_forward + joined + head));
    EXPECT_EQ(plan::idle_parameters(shape), last ? 2 * idle : idle);
    EXPECT_GT(idle, 0);
  }
}

TEST(Flops, GatedDeltaNetsAndGatesCountTheirProducts) {
  auto shape = small();
  const double attention = 16 * (8 * 24 + 8 * 8) + 2 * (16.0 * 16 / 2) * 8;
  shape.delta_net = plan::DeltaNetShape{3, 2, 2, 4, 5};
  shape.layers[0] = {.delta_net = true, .mlp = true};
  // 6 channels of keys and 8 of values: the projections 8x(2*6 + 2*8 + 2*4) and 8x8, a convolution of 5 tokens, and
  // four products of 2x2 for each of 4 heads.
  const double linear = 16 * (8 * 36 + 8 * 8 + 5 * 20 + 4 * 4 * 2 * 2);
  expect_same(step_flops(shape, {}), step_flops(small(), {}) + 3 * 2 * (linear - attention));
  shape.linear = LinearAttention{*shape.delta_net};
  shape.linear->layer_is_linear = {true, false};
  expect_same(megatron_flops(shape, {}), step_flops(shape, {}));
  shape.attention_output_gate = true;
  expect_same(step_flops(shape, {}), step_flops(small(), {}) + 3 * 2 * (linear - attention + 16 * 8 * 8));
}

TEST(Flops, LightningAttentionCountsItsProducts) {
  auto shape = small();
  const double attention = 16 * (8 * 24 + 8 * 8) + 2 * (16.0 * 16 / 2) * 8;
  shape.layers[0] = {.lightning = true, .mlp = true};
  // Five projections of 8x8, and two products of each of the 8 channels with a state of 4.
  expect_same(step_flops(shape, {}), step_flops(small(), {}) + 3 * 2 * (16 * (5 * 8 * 8 + 2 * 8 * 4) - attention));
}

TEST(Flops, WithoutLayersThereIsOnlyTheHead) {
  auto shape = small();
  shape.layers.clear();
  shape.experts = plan::ExpertShape{.num_experts = 4, .router_topk = 1, .ffn_hidden_size = 8};
  expect_same(step_flops(shape, {}), 3 * 2 * 16 * 8 * 100);
}

TEST(Flops, OfAHybridOfAttentionAndMlpAreThoseOfTheTransformer) {
  auto hybrid = small();
  hybrid.hybrid = HybridLayers{.pattern = "*-|*-"};
  expect_same(megatron_flops(hybrid, {}), step_flops(small(), {}));
}

// Megatron assumes an inner width of twice the hidden size, which is 8 here.
TEST(Flops, OfLayersWithOneSublayerAreMegatrons) {
  auto shape = small();
  shape.num_layers = 5;
  shape.hybrid = HybridLayers{
      .pattern = "M*-ME", .mamba_state_dim = 6, .mamba_head_dim = 4, .mamba_num_groups = 2, .mamba_num_heads = 4};
  shape.experts = plan::ExpertShape{.num_experts = 4, .router_topk = 2, .ffn_hidden_size = 8};
  shape.all_experts = MegatronExperts{*shape.experts};
  shape.layers = {{.mamba = true}, {.attention = true}, {.mlp = true}, {.mamba = true}, {.experts = true}};
  shape.mamba = plan::MambaShape{.heads = 4, .head_dim = 4, .num_groups = 2, .state_dim = 6};
  expect_same(step_flops(shape, {.batch_size = 3}), megatron_flops(shape, {.batch_size = 3}));
}

TEST(Memory, CountsEveryParameterOfAGptByHand) {
  // Without biases on the linear layers: two norms per layer of weight and bias, one at the end.
  const double layer = 8 * 24 + 8 * 8 + 2 * 8 * 32 + 4 * 8;
  const auto count = count_parameters(small());
  expect_same(count.total, 2 * layer + 2 * 8 + 8 * 100);
  expect_same(weight_and_optimizer_bytes(small(), {}), 18 * count.total);
}

TEST(Memory, OfTheOptimizerIsSharedOverDataParallelRanks) {
  const double whole = weight_and_optimizer_bytes(small(), {.dp = 4});
  const double shared = weight_and_optimizer_bytes(small(), {.dp = 4, .distributed_optimizer = true});
  expect_same(shared / whole, (6 + 12.0 / 4) / 18);
}

TEST(Memory, OfNormsIsNotCutByTensorParallelism) {
  const double one = weight_and_optimizer_bytes(small(), {}), two = weight_and_optimizer_bytes(small(), {.tp = 2});
  const double norms = 18.0 * (2 * 4 * 8 + 2 * 8);
  expect_same(two, (one - norms) / 2 + norms);
}

TEST(Memory, OfExpertsIsCutByExpertParallelism) {
  auto shape = small();
  shape.all_experts = MegatronExperts{{.num_experts = 4, .router_topk = 1, .ffn_hidden_size = 8}};
  shape.all_experts->layer_is_moe = {true, true};
  const double one = weight_and_optimizer_bytes(shape, {}), four = weight_and_optimizer_bytes(shape, {.ep = 4});
  expect_same(one - four, 18.0 * 2 * 4 * (2 * 8 * 8) * 3 / 4);
}

TEST(Memory, OfActivationsGrowsWithTheMicrobatchesInFlightUpToTheStages) {
  MemoryLayout layout{.pp = 4};
  layout.num_microbatches = 1;
  const double one = activation_bytes(small(), layout);
  layout.num_microbatches = 4;
  expect_same(activation_bytes(small(), layout), 4 * one);
  layout.num_microbatches = 64;
  expect_same(activation_bytes(small(), layout), 4 * one);
  MemoryLayout interleaved{.pp = 4, .vpp = 2};
  expect_same(activation_bytes(small(), interleaved), 4 * one * (1 + 3.0 / 8));
}

TEST(ModelShape, ResolvesWhatTheConfigDerives) {
  config::Config config;
  config.model.hidden_size = 256;
  config.model.num_attention_heads = 8;
  config.model.gated_linear_unit = true;
  const auto shape = model_shape(config, 512);
  EXPECT_EQ(shape.num_query_groups, 8);
  EXPECT_EQ(shape.kv_channels, 32);
  EXPECT_EQ(shape.ffn_hidden_size, 640);
  config.model.gated_linear_unit = false;
  EXPECT_EQ(model_shape(config, 512).ffn_hidden_size, 1024);
  config.model.num_attention_heads = 0;
  EXPECT_THROW(model_shape(config, 512), base::Error);
}

TEST(ModelShape, OfExpertsCountsWhatATokenVisits) {
  config::Config config;
  config.model.num_layers = 4;
  config.model.hidden_size = 8;
  config.model.num_attention_heads = 2;
  config.model.add_bias_linear = false;
  config.model.num_moe_experts = 6;
  config.model.moe_layer_freq = "[0,1,1,0]";
  config.model.moe_ffn_hidden_size = 5;
  config.train.seq_length = 3;
  const auto shape = model_shape(config, 0);
  ASSERT_TRUE(shape.experts.has_value());
  // Two layers of experts: each token visits 2 of 6; an expert has 2 * 8 * 5 weights, each one multiply-add per
  // token.
  EXPECT_EQ(idle_parameters(shape), 2 * 4 * 2 * 8 * 5);
  const double difference = step_flops(plan::with_all_experts(shape), {}) - step_flops(shape, {});
  expect_same(difference, 6.0 * 3 * static_cast<double>(idle_parameters(shape)));
  config.model.add_bias_linear = true;
  EXPECT_EQ(idle_parameters(model_shape(config, 0)), 2 * 4 * (2 * 8 * 5 + 5 + 8));
  config.model.gated_linear_unit = true;
  EXPECT_EQ(idle_parameters(model_shape(config, 0)), 2 * 4 * (3 * 8 * 5 + 10 + 8));
  config.model.moe_latent_size = 3;
  EXPECT_EQ(idle_parameters(model_shape(config, 0)), 2 * 4 * (3 * 3 * 5 + 10 + 3));
  config.model.num_moe_experts = 0;
  EXPECT_EQ(idle_parameters(model_shape(config, 0)), 0);
}

}  // namespace
}  // namespace metroplex::test::model_flops_test
