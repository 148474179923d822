// The estimates of the search: layers of several forms, and memory that is a lower bound.
#include "forecast/layout_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/load.h"
#include "config/validate.h"
#include "forecast/memory_ratios.h"
#include "forecast/run_plan.h"
#include "forecast/stage_traces.h"

namespace metroplex::test::layout_estimate_test {
namespace {

using forecast::Layout;
using Settings = std::vector<std::string>;

// Layers of tens of MB, so that tables and libraries hardly count.
config::Config model(const Settings& settings, int64_t hidden = 2048) {
  config::Config config;
  config.model.num_layers = 8;
  config.model.hidden_size = hidden;
  config.model.ffn_hidden_size = 2 * hidden;
  config.model.num_attention_heads = 16;
  config.model.vocab_size = 128;
  config.model.max_position_embeddings = 2048;
  config.precision.params_dtype = config::ParamsDtype::bf16;
  config.train.seq_length = 2048;
  config.train.global_batch_size = 16;
  config.train.train_iters = 10;
  config.run.device = config::Device::cuda;
  config.data.mock_data = true;
  return config::parse(config::dump(config), settings);
}

forecast::PlanRequest request(const config::Config& config, int world) {
  forecast::PlanRequest request{.run = {config, world, config.model.vocab_size, {}},
                                .machine = price::find_machine("h100")};
  request.run.domains.gpu = true;
  return request;
}

const Settings kExperts{"model.num_moe_experts=4", "model.moe_router_topk=2"};
const Settings kDeltaNet{"model.experimental_attention_variant=gated_delta_net",
                         "model.linear_attention_freq=4",
                         "model.linear_num_key_heads=4",
                         "model.linear_num_value_heads=8",
                         "model.normalization=RMSNorm",
                         "model.position_embedding_type=rope",
                         "model.gated_linear_unit=true",
                         "model.add_bias_linear=false"};
const Settings kHybrid{"model.hybrid_layer_pattern=M-M-M*M-", "model.position_embedding_type=none",
                       "model.mamba_num_groups=4"};

const Settings kGathersCodes{"precision.fp8_param_gather=true", "precision.fp8_format=hybrid",
                             "precision.fp8_recipe=tensorwise", "parallel.data_parallel_sharding_strategy=optim"};
const Settings kMultiToken{"model.mtp_num_layers=1", "model.position_embedding_type=rope"};

Settings with(Settings all, const Settings& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(LayerForms, HoldOneLayerOfEachForm) {
  const auto forms = [](const Settings& settings) { return forecast::find_layer_forms(model(settings)); };
  const forecast::LayerForms hybrid = forms(kHybrid);
  EXPECT_EQ(hybrid.config.model.hybrid_layer_pattern, "M-*");
  EXPECT_EQ(hybrid.of_layer, (std::vector<size_t>{0, 1, 0, 1, 0, 2, 0, 1}));
  EXPECT_EQ(forms(kDeltaNet).config.model.linear_attention_freq, "[1,0]");
  const forecast::LayerForms experts = forms(with(kExperts, {"model.moe_layer_freq=[0]*2+[1]*6"}));
  EXPECT_EQ(experts.config.model.moe_layer_freq, "[0,1]");
  EXPECT_EQ(experts.of_layer, (std::vector<size_t>{0, 0, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(forms({}).count(), 1U);
  const forecast::LayerForms windows =
      forms({"model.window_size=128", "model.window_attn_skip_freq=4", "model.position_embedding_type=rope",
             "model.no_rope_freq=[0,1,0,1,0,1,0,1]"});
  EXPECT_EQ(windows.config.model.window_attn_skip_freq, "[1,1,0]");
  EXPECT_EQ(windows.config.model.no_rope_freq, "[0,1,1]");
  const forecast::LayerForms formats = forms(
      {"precision.fp8_format=hybrid", "precision.fp8_recipe=tensorwise", "precision.first_last_layers_bf16=true",
       "precision.num_layers_at_start_in_bf16=0", "precision.num_layers_at_end_in_bf16=2"});
  EXPECT_EQ(formats.of_layer, (std::vector<size_t>{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(formats.config.precision.num_layers_at_start_in_bf16, 1);
  EXPECT_EQ(formats.config.precision.num_layers_at_end_in_bf16, 0);
}

// Exact memory exceeds the estimate, so that the search drops no layout that fits. The margin of the search covers
// buffers that are freed before the peak.
TEST(LayoutEstimate, BytesAreALowerBound) {
  const std::vector<Settings> models{
      kDeltaNet,
      kHybrid,
      with(kExperts, {"model.moe_layer_freq=[0]*2+[1]*6", "model.moe_ffn_hidden_size=8192"}),
      with(kExperts, {"model.moe_layer_freq=[1]*6+[0]*2", "model.moe_ffn_hidden_size=1024"}),
      {"precision.fp8_format=hybrid", "precision.fp8_recipe=tensorwise", "precision.first_last_layers_bf16=true"},
      kGathersCodes,
      with(kGathersCodes, {"precision.fp8_products=library"}),
      {"precision.main_grads_dtype=params", "optim.exp_avg_dtype=8bit", "optim.exp_avg_sq_dtype=bf16"},
      {"optim.main_params_dtype=bf16"},
      {"optim.optimizer=lion"},
      {"peft.lora_rank=8"},
      with(kMultiToken, {"model.vocab_size=20000"}),
      {"model.vocab_size=200000", "memory.loss_chunk_tokens=256", "precision.output_logit_dtype=fp32"}};
  for (const Settings& settings : models) {
    SCOPED_TRACE(settings[0]);
    const std::vector<double> ratios = memory_ratios(request(model(settings), 8), 97);
    ASSERT_GT(ratios.size(), 10u);
    const double highest = *std::max_element(ratios.begin(), ratios.end());
    EXPECT_GT(highest, 0.5);
    std::printf("%s: at most %.3f of the exact memory of %d layouts\n", settings[0].c_str(), highest,
                static_cast<int>(ratios.size()));
  }
}

// The linear layers of 8 layers have 8 h^2 values each, whose rounded values are fp32. With sharded parameters, no
// rounded values are kept.
TEST(LayoutEstimate, CountsKeptRoundedWeights) {
  const Settings tensorwise{"precision.fp8_format=hybrid", "precision.fp8_recipe=tensorwise"};
  const forecast::PlanRequest kept = request(model(tensorwise), 2),
                              rounded = request(model(with(tensorwise, {"precision.keep_rounded_weights=false"})), 2);
  const auto difference = [&](const Layout& layout) {
    return forecast::LayoutEstimator(kept).estimate(layout).bytes -
           forecast::LayoutEstimator(rounded).estimate(layout).bytes;
  };
  EXPECT_EQ(difference({}), 8.0 * 8 * 2048 * 2048 * 4);
  EXPECT_EQ(difference({.sharding = config::ShardingStrategy::optim_grads_params}), 0);
}

// ZeRO-1 on 8 ranks: codes and an eighth of the values replace the values of a parameter, 2 bytes.
TEST(LayoutEstimate, CountsGatheredCodes) {
  const Layout layout{.sharding = config::ShardingStrategy::optim};
  const auto bytes = [&](const Settings& settings) {
    return forecast::LayoutEstimator(request(model(settings), 8)).estimate(layout).bytes;
  };
  Settings values = kGathersCodes;
  values[0] = "precision.fp8_param_gather=false";
  forecast::PlanRequest one = request(model(kGathersCodes), 8);
  const auto costs = forecast::measure_layers(one, forecast::find_layer_forms(one.run.config), layout);
  const double params = 8 * costs.layers[0].params + costs.embedding_params + costs.head_params;
  // Sums of about 20 bytes per parameter, rounded some ten times to 2^-53.
  EXPECT_NEAR(bytes(values) - bytes(kGathersCodes), params * (2 - 1 - 2.0 / 8), 10 * 0x1p-53 * 20 * params);
}

// One rank has no communication: the step is the sum of layers, ends and update. The update has a coarse formula, but
// takes at most 1 % of 64 microbatches. With one form, or without multi-token prediction, the estimates would be off
// by more than 10 %.
TEST(LayoutEstimate, SumsLayersOfSeveralForms) {
  for (const Settings& settings :
       {kDeltaNet, kHybrid, with(kExperts, {"model.moe_layer_freq=[0]*6+[1]*2"}), kMultiToken}) {
    forecast::PlanRequest one = request(model(with(settings, {"train.global_batch_size=64"})), 1);
    const double estimate = forecast::LayoutEstimator(one).estimate({}).seconds;
    one.run.config = config::resolved(Layout{}.apply(one.run.config), 1);
    const forecast::RunPlan plan = forecast::plan_run(one);
    EXPECT_NEAR(estimate / plan.step_s, 1, 0.01) << settings[0];
  }
}

// The first stage has all experts and determines the step. With the mean of both stages the estimate would be 0.77 of
// the simulated time.
TEST(LayoutEstimate, FollowsTheSlowestStage) {
  forecast::PlanRequest one =
      request(model(with(kExperts, {"model.moe_layer_freq=[1]*4+[0]*4", "train.global_batch_size=64"})), 2);
  const Layout layout{.pp = 2};
  const double estimate = forecast::LayoutEstimator(one).estimate(layout).seconds;
  one.run.config = config::resolved(layout.apply(one.run.config), 2);
  const forecast::RunPlan plan = forecast::plan_run(one);
  EXPECT_NEAR(estimate / plan.step_s, 1, 0.01);
}

// A lower bound: passes in pairs hide exchanges; of 32 microbatches, the first forward and the last backward have no
// partner. With all exchanges exposed, the estimate would be 1.36 of the simulated time.
TEST(LayoutEstimate, HidesExchangesOfPairs) {
  forecast::PlanRequest one = request(
      model(with(kExperts, {"train.global_batch_size=64", "parallel.overlap_moe_expert_parallel_comm=true"})), 2);
  one.machine.cluster.domains = {{"network", 0, {1e-5, 5e10}}};
  const Layout layout{.ep = 2};
  const double estimate = forecast::LayoutEstimator(one).estimate(layout).seconds;
  one.run.config = config::resolved(layout.apply(one.run.config), 2);
  const double ratio = estimate / forecast::plan_run(one).step_s;
  EXPECT_GT(ratio, 1 - 1.0 / 32);
  EXPECT_LT(ratio, 1);
}

// Messages take longer than the passes of a stage. With a split backward, the estimate is a lower bound.
TEST(LayoutEstimate, WaitsForMessagesOfEveryMicrobatch) {
  const auto ratio = [](config::Schedule schedule) {
    forecast::PlanRequest one = request(model({"train.global_batch_size=32"}), 4);
    one.machine.cluster.domains = {{"network", 0, {1e-5, 2e9}}};
    const Layout layout{.pp = 4, .schedule = schedule};
    const double estimate = forecast::LayoutEstimator(one).estimate(layout).seconds;
    one.run.config = config::resolved(layout.apply(one.run.config), 4);
    return estimate / forecast::plan_run(one).step_s;
  };
  EXPECT_NEAR(ratio(config::Schedule::automatic), 1, 0.03);
  EXPECT_GT(ratio(config::Schedule::zb_h1), 0.95);
  EXPECT_LT(ratio(config::Schedule::zb_h1), 1);
}

// The estimate is that of the first rank, which has the loss without pipeline and with a V schedule.
TEST(LayoutEstimate, OnlyTheStageOfTheLossHoldsTheHead) {
  const auto bytes = [](const Settings& settings, const Layout& layout) {
    const forecast::PlanRequest one = request(model(with(settings, {"model.vocab_size=20000"})), 2);
    return forecast::LayoutEstimator(one).estimate(layout).bytes;
  };
  const Settings untied{"model.untie_embeddings_and_output_weights=true"};
  EXPECT_EQ(bytes(untied, {.pp = 2}), bytes({}, {.pp = 2}));
  for (const Layout& layout : {Layout{}, Layout{.pp = 2, .vpp = 2, .schedule = config::Schedule::zb_v}})
    EXPECT_GT(bytes(untied, layout), bytes({}, layout)) << layout.pp;
}

TEST(Search, EqualsExhaustiveSearchOfHybrids) {
  for (const Settings& settings : {kDeltaNet, with(kHybrid, {"model.hybrid_layer_pattern=M-*M"})}) {
    const config::Config config =
        model(with(settings, {"model.num_layers=4", "train.global_batch_size=2", "train.seq_length=256"}), 256);
    const forecast::PlanRequest one = request(config, 2);
    const forecast::LayoutSearch all = forecast::search_layouts(
        one, {.results = 1 << 20, .margin = 1, .most_saved = 1e30, .max_simulated = 1 << 20, .refined = 0});
    const forecast::LayoutSearch fast = forecast::search_layouts(one, {.refined = 0});
    EXPECT_DOUBLE_EQ(fast.results[0].plan.step_s, all.results[0].plan.step_s) << settings[0];
    EXPECT_LT(fast.simulated, all.simulated);
  }
}

}  // namespace
}  // namespace metroplex::test::layout_estimate_test
