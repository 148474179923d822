// Memory options hold what they promise, are sorted, and are none where nothing is saved.
#include "forecast/memory_options.h"

#include <gtest/gtest.h>

#include <set>

#include "forecast/fit_case.h"

namespace metroplex::test::memory_options_test {
namespace {

using config::ShardingStrategy;
using forecast::Fit;
using forecast::FitRequest;
using forecast::MemoryOption;
using forecast::MemoryOptions;

const std::vector<std::string> kFour{"parallel.tensor_model_parallel_size=2"};

MemoryOptions options(const FitRequest& request, const forecast::Predictor& predict = forecast::predict_rank) {
  return forecast::memory_options(request, forecast::fit(request, predict), predict);
}

std::vector<MemoryOption> all_options(const MemoryOptions& options) {
  std::vector<MemoryOption> all = options.single;
  if (options.together) all.push_back(*options.together);
  return all;
}

std::string setting_key(const std::string& setting) { return setting.substr(0, setting.find('=')); }

// The result of these flags on a command line.
int64_t predict_need(const FitRequest& request, const std::vector<std::string>& base, const MemoryOption& option) {
  std::vector<std::string> settings = base;
  settings.insert(settings.end(), option.settings.begin(), option.settings.end());
  return forecast::fit(fit_request(request.world_size, settings, request.domains)).need;
}

class MemoryOptionsAt : public testing::TestWithParam<double> {};

TEST_P(MemoryOptionsAt, HoldWhatTheyPromiseWhenTyped) {
  for (const bool gpu : {false, true}) {
    std::vector<std::string> base = kFour;
    if (gpu) base.push_back("run.device=cuda");
    FitRequest request = fit_request(4, base, gpu ? gpus(1) : machine(4, 1));
    const Fit now = forecast::fit(request);
    request.domains.bytes = static_cast<int64_t>(static_cast<double>(now.need) * GetParam());
    const MemoryOptions found = options(request);
    ASSERT_EQ(found.single.size(), 3u);
    for (const MemoryOption& option : all_options(found)) {
      EXPECT_EQ(predict_need(request, base, option), option.need) << option.what;
      EXPECT_EQ(option.saves, now.need - option.need) << option.what;
      EXPECT_GT(option.saves, 0) << option.what;
      EXPECT_EQ(option.fits, option.need <= *request.domains.bytes) << option.what;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shares, MemoryOptionsAt, testing::Values(0.95, 0.7, 0.4, 0.1));

// With ZeRO 2 and more every microbatch exchanges gradients, without it only the last: (n - 1) more exchanges of n
// microbatches, as a share of their n forward and backward passes.
TEST(MemoryOptions, ShardedGradientsAreExchangedPerMicrobatch) {
  const auto cost = [](int64_t microbatches) {
    const std::string batch = "train.global_batch_size=" + std::to_string(4 * 4 * microbatches);
    const auto request = [&](const std::string& strategy) {
      return fit_request(4, {batch, "parallel.data_parallel_sharding_strategy=" + strategy}, gpus(1));
    };
    forecast::RankFigures figures;
    figures.prediction.num_params = 1000;
    figures.prediction.flops = static_cast<double>(microbatches) * 1e6;
    return forecast::added_cost(request("optim"), figures, request("optim_grads"), figures);
  };
  EXPECT_EQ(cost(1), 0);
  EXPECT_GT(cost(2), 0);
  EXPECT_DOUBLE_EQ(cost(5) / cost(2), (4.0 / 5) / (1.0 / 2));
}

TEST(MemoryOptions, ChangeNothingThatIsLearned) {
  const std::set<std::string> kept{"parallel.sequence_parallel",
                                   "parallel.data_parallel_sharding_strategy",
                                   "optim.store_param_remainders",
                                   "optim.optimizer_cpu_offload",
                                   "train.micro_batch_size",
                                   "train.global_batch_size",
                                   "memory.recompute_granularity",
                                   "memory.recompute_method",
                                   "memory.recompute_num_layers",
                                   "memory.recompute_modules",
                                   "memory.distribute_saved_activations",
                                   "memory.offload_activations"};
  FitRequest request = fit_request(4, kFour, machine(4, 1));
  for (const MemoryOption& option : all_options(options(request))) {
    for (const std::string& setting : option.settings) {
      EXPECT_TRUE(kept.contains(setting_key(setting))) << setting;
      if (setting_key(setting) == "train.global_batch_size") { EXPECT_EQ(setting, "train.global_batch_size=64"); }
    }
  }
}

// The dearer a option, the more it saves: those that cost least are taken all the same.
TEST(MemoryOptions, OfThoseThatFitTheCheapestAreTakenInOrder) {
  const forecast::Predictor planted = [](const forecast::RankRequest& request) {
    const config::Config& config = request.config;
    forecast::RankPrediction out;
    out.memory.peak = 1000000;
    out.flops = out.model_flops = 1e12;
    const auto option = [&](bool taken, int64_t peak, double flops) {
      if (!taken) return;
      out.memory.peak = std::min(out.memory.peak, peak);
      out.flops = flops;
    };
    option(config.parallel.sequence_parallel, 700000, 1.1e12);
    option(config.optim.store_param_remainders, 600000, 1.2e12);
    option(config.parallel.sharding().any(), 500000, 1.3e12);
    option(config.train.micro_batch_size < 4, 400000, 1.4e12);
    return out;
  };
  const FitRequest request = fit_request(4, kFour, machine(1, 800000));
  const std::vector<MemoryOption> single = options(request, planted).single;
  ASSERT_EQ(single.size(), 3u);
  EXPECT_EQ(setting_key(single[0].settings[0]), "parallel.sequence_parallel");
  EXPECT_EQ(setting_key(single[1].settings[0]), "optim.store_param_remainders");
  EXPECT_EQ(setting_key(single[2].settings[0]), "parallel.data_parallel_sharding_strategy");
  EXPECT_DOUBLE_EQ(single[1].cost, 0.2);  // a fifth more operations
}

// Two kinds fit: the third option is another level of the one that costs nothing, ahead of the one that does.
TEST(MemoryOptions, OtherLevelsOfAKindStandByTheirCost) {
  const forecast::Predictor planted = [](const forecast::RankRequest& request) {
    const config::Config& config = request.config;
    forecast::RankPrediction out;
    out.memory.peak =
        1000000 - (config.memory.recomputes_all() ? 300000 : 0) - (4 - config.train.micro_batch_size) * 100000;
    out.model_flops = 1e12;
    out.flops = config.memory.recomputes_all() ? 1.3e12 : 1e12;
    return out;
  };
  const std::vector<MemoryOption> single = options(fit_request(2, {}, machine(1, 850000)), planted).single;
  ASSERT_EQ(single.size(), 3u);
  EXPECT_EQ(single[0].settings[0], "train.micro_batch_size=1");
  EXPECT_EQ(single[1].settings[0], "train.micro_batch_size=2");
  EXPECT_EQ(single[2].settings[0], "memory.recompute_granularity=full");
}

// Only full recompute and the microbatch change anything, by a known amount.
int64_t planted_peak(const forecast::RankRequest& request) {
  const config::Config& config = request.config;
  return 1000000 - (config.memory.recomputes_all() ? 300000 : 0) - (4 - config.train.micro_batch_size) * 50000;
}

TEST(MemoryOptions, WhatSavesNothingIsNotOffered) {
  FitRequest request = fit_request(4, kFour, machine(1, 800000));
  const MemoryOptions found = options(request, Planted{planted_peak});
  ASSERT_FALSE(found.single.empty());
  for (const MemoryOption& option : found.single) {
    const std::string key = setting_key(option.settings[0]);
    EXPECT_TRUE(key == "memory.recompute_granularity" || key == "train.micro_batch_size") << option.what;
  }
  EXPECT_EQ(found.single[0].saves, 300000);
  const MemoryOptions none = options(request, Planted{[](const forecast::RankRequest&) { return 1000000; }});
  EXPECT_TRUE(none.single.empty());
  EXPECT_FALSE(none.together.has_value());
}

TEST(MemoryOptions, WhatTheRulesRefuseIsNotOffered) {
  // Everything but the microbatch looks as if it freed all: what is offered must still be allowed.
  const Planted planted{[](const forecast::RankRequest& request) {
    return request.config.memory.offload_activations == config::Offload::host ? 1 : 1000000;
  }};
  FitRequest request = fit_request(1, {"run.device=cpu"}, machine(1, 10));
  EXPECT_TRUE(options(request, planted).single.empty()) << "offload to the host needs a GPU";
  request = fit_request(1, {"run.device=cuda"}, gpus(10));
  ASSERT_FALSE(options(request, planted).single.empty());
  EXPECT_EQ(options(request, planted).single[0].settings[0], "memory.offload_activations=host");
}

TEST(MemoryOptions, SeveralTogetherAreTriedWhereNoneIsEnough) {
  FitRequest request = fit_request(4, kFour, machine(1, 600000));
  const MemoryOptions found = options(request, Planted{planted_peak});
  for (const MemoryOption& option : found.single) EXPECT_FALSE(option.fits) << option.what;
  ASSERT_TRUE(found.together.has_value());
  EXPECT_TRUE(found.together->fits);
  // 300000 by recompute, and of the microbatch the first half that is enough: 2 of 4.
  EXPECT_EQ(found.together->need, 600000);
  request.domains.bytes = 100000;
  const MemoryOptions hopeless = options(request, Planted{planted_peak});
  ASSERT_TRUE(hopeless.together.has_value());
  EXPECT_FALSE(hopeless.together->fits);
  EXPECT_EQ(hopeless.together->need, 550000) << "all settings together";
}

// A machine needs the sum over its ranks, for options alone and together; one rank would fit with any of them.
TEST(MemoryOptions, RanksOfAMachineCountTogether) {
  const std::vector<std::string> settings = kFour;
  const MemoryOptions found = options(fit_request(4, settings, machine(4, 4 * 600000)), Planted{planted_peak});
  ASSERT_FALSE(found.single.empty());
  for (const MemoryOption& option : found.single) EXPECT_FALSE(option.fits) << option.what;
  EXPECT_EQ(found.single[0].need, 4 * 700000);
  EXPECT_EQ(found.single[0].saves, 4 * 300000);
  ASSERT_TRUE(found.together.has_value());
  EXPECT_TRUE(found.together->fits);
  EXPECT_EQ(found.together->need, 4 * 600000);
}

// Recompute of whole layers fits alone and is dear; sequence parallelism and remainders fit together for less.
TEST(MemoryOptions, TwoThatFitForLessThanOneAreOffered) {
  const forecast::Predictor planted = [](const forecast::RankRequest& request) {
    const config::Config& config = request.config;
    forecast::RankPrediction out;
    const bool all = config.memory.recomputes_all(), cut = config.parallel.sequence_parallel,
               rest = config.optim.store_param_remainders;
    out.memory.peak = 1000000 - (all ? 500000 : 0) - (cut ? 150000 : 0) - (rest ? 150000 : 0);
    out.model_flops = 1e12;
    out.flops = 1e12 * (1 + (all ? 0.5 : 0) + (cut ? 0.1 : 0) + (rest ? 0.1 : 0));
    return out;
  };
  const MemoryOptions found = options(fit_request(4, kFour, machine(1, 750000)), planted);
  ASSERT_FALSE(found.single.empty());
  EXPECT_TRUE(found.single[0].fits);
  EXPECT_EQ(setting_key(found.single[0].settings[0]), "memory.recompute_granularity");
  ASSERT_TRUE(found.together.has_value());
  EXPECT_TRUE(found.together->fits);
  EXPECT_EQ(found.together->need, 700000);
  EXPECT_NEAR(found.together->cost, 0.2, 1e-3);  // and the gathers of a cut sequence
  // One of the two is enough alone: no pair has it.
  EXPECT_FALSE(options(fit_request(4, kFour, machine(1, 860000)), planted).together.has_value());
}

// Each of three saves a little for little; of any two the savings are not enough, and what is enough alone is dear.
TEST(MemoryOptions, ThreeThatFitForLessThanOneAreOffered) {
  const forecast::Predictor planted = [](const forecast::RankRequest& request) {
    const config::Config& config = request.config;
    forecast::RankPrediction out;
    replay::MemoryUse& use = out.memory.use;
    const bool all = config.memory.recomputes_all(), cut = config.parallel.sequence_parallel,
               rest = config.optim.store_param_remainders, shared = config.parallel.sharding().any();
    use.activations = all ? 0 : cut ? 250000 : 400000;
    use.main_parameters = rest ? 150000 : 300000;
    use.moments = shared ? 150000 : 300000;
    out.memory.peak = use.total();
    out.model_flops = 1e12;
    out.flops = 1e12 * (1 + (all ? 0.5 : 0) + (cut ? 0.1 : 0) + (rest ? 0.1 : 0) + (shared ? 0.1 : 0));
    return out;
  };
  const MemoryOptions found = options(fit_request(4, kFour, machine(1, 610000)), planted);
  ASSERT_FALSE(found.single.empty());
  EXPECT_TRUE(found.single[0].fits);
  EXPECT_EQ(setting_key(found.single[0].settings[0]), "memory.recompute_granularity");
  ASSERT_TRUE(found.together.has_value());
  EXPECT_TRUE(found.together->fits);
  EXPECT_EQ(found.together->need, 550000);
  EXPECT_LT(found.together->cost, 0.35);
}

// Recompute and an optimizer in host memory are enough. They are cheaper with ZeRO, which is expensive alone. The
// cost of several options is predicted, not added up.
TEST(MemoryOptions, WhatSettingsCostTogetherIsLookedAt) {
  const forecast::Predictor planted = [](const forecast::RankRequest& request) {
    const config::Config& config = request.config;
    forecast::RankPrediction out;
    const bool all = config.memory.recomputes_all(), host = config.optim.optimizer_cpu_offload,
               shared = config.parallel.sharding().any();
    out.memory.use.activations = all ? 100000 : 500000;
    out.memory.use.moments = host ? 100000 : shared ? 450000 : 500000;
    out.memory.peak = out.memory.use.total();
    out.model_flops = 1e12;
    out.flops = 1e12 * (1 + (all ? 0.3 : 0) + (host && !shared ? 0.4 : 0) + (shared ? 0.05 : 0));
    return out;
  };
  std::vector<std::string> settings = kFour;
  settings.push_back("run.device=cuda");
  const MemoryOptions found = options(fit_request(4, settings, gpus(250000)), planted);
  for (const MemoryOption& option : found.single) EXPECT_FALSE(option.fits) << option.what;
  ASSERT_TRUE(found.together.has_value());
  EXPECT_TRUE(found.together->fits);
  EXPECT_LT(found.together->cost, 0.5) << found.together->what;
}

// The number of predictions is about the same, no matter by how much a run exceeds the memory.
TEST(MemoryOptions, AskABoundedNumberOfTimes) {
  for (const int64_t bytes : {int64_t{1}, int64_t{900000}}) {
    int calls = 0;
    const Planted planted{planted_peak, &calls};
    const std::vector<std::string> settings{"model.num_layers=64", "parallel.pipeline_model_parallel_size=64",
                                            "parallel.data_parallel_sharding_strategy=optim",
                                            "train.global_batch_size=65536"};
    const FitRequest request = fit_request(16384, settings, gpus(bytes));
    const Fit now = forecast::fit(request, planted);
    EXPECT_EQ(calls, 2 * 64);
    calls = 0;
    forecast::memory_options(request, now, planted);
    EXPECT_LE(calls, 5 * 2 * 64 + 80 * 3) << "five predictions of all pipeline ranks, and 80 of three of them";
  }
}

}  // namespace
}  // namespace metroplex::test::memory_options_test
