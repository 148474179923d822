// The search finds the layout that an exhaustive comparison finds, and proposes only layouts that can run.
#include "forecast/search.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/stage_traces.h"

namespace metroplex::test::search_test {
namespace {

using forecast::LayoutSearch;
using forecast::PlanRequest;

config::Config small_model(int64_t layers, int64_t experts, int64_t batch, int64_t seq) {
  config::Config config;
  config.model.num_layers = layers;
  config.model.hidden_size = 64;
  config.model.ffn_hidden_size = 128;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 128;
  config.model.max_position_embeddings = seq;
  config.model.num_moe_experts = experts;
  if (experts > 0) config.model.moe_router_topk = 2;
  config.precision.params_dtype = config::ParamsDtype::bf16;
  config.train.seq_length = seq;
  config.train.global_batch_size = batch;
  config.train.train_iters = 10;
  config.run.device = config::Device::cuda;
  config.data.mock_data = true;
  return config;
}

PlanRequest request(const config::Config& config, int world, const std::string& machine) {
  PlanRequest request{.run = {config, world, config.model.vocab_size, {}}, .machine = price::find_machine(machine)};
  request.run.domains.gpu = true;
  return request;
}

// The best of all simulated layouts that need at most `bytes`.
double exhaustive_best(const LayoutSearch& all, int64_t bytes) {
  for (const forecast::SearchResult& result : all.results) {
    if (result.plan.fit.need <= bytes) return result.plan.step_s;
  }
  return 0;
}

// METROPLEX_SEARCH_CASES=200 runs more cases.
TEST(Search, EqualsExhaustiveSearch) {
  const char* const given = std::getenv("METROPLEX_SEARCH_CASES");
  const int cases = given == nullptr ? 2 : std::atoi(given);
  std::mt19937 random(7);
  const auto pick = [&](const std::vector<int64_t>& values) { return values[random() % values.size()]; };
  for (int i = 0; i < cases; ++i) {
    const auto world = static_cast<int>(pick({1, 2, 3, 4}));
    const int64_t layers = pick({1, 2, 3}), experts = world < 4 ? pick({0, 0, 2}) : 0;
    const config::Config config = small_model(layers, experts, world * pick({1, 2, 3}), pick({32, 128, 512}));
    PlanRequest one = request(config, world, i % 2 == 0 ? "h100" : "b200");
    const LayoutSearch all =
        forecast::search_layouts(one, {.results = 1 << 20, .margin = 1, .max_simulated = 1 << 20});
    const int64_t least = all.pareto.front().plan.fit.need, most = all.results[0].plan.fit.need;
    for (const int64_t bytes : {std::max(least, most), (least + most) / 2, least}) {
      one.run.domains.bytes = bytes;
      const LayoutSearch fast = forecast::search_layouts(one);
      EXPECT_DOUBLE_EQ(fast.results[0].plan.step_s, exhaustive_best(all, bytes))
          << "case " << i << ", " << bytes << " bytes: " << fast.results[0].layout.to_string(world);
      EXPECT_LE(fast.simulated, all.simulated);
    }
  }
}

TEST(Search, ProposesLayoutsThatRun) {
  const config::Config config = small_model(2, 2, 8, 64);
  PlanRequest one = request(config, 4, "h100");
  const LayoutSearch first = forecast::search_layouts(one);
  one.run.domains.bytes = first.results[0].plan.fit.need - 1;
  const LayoutSearch search = forecast::search_layouts(one);
  ASSERT_FALSE(search.results.empty());
  for (const forecast::SearchResult& result : search.results) {
    const config::Config layout = result.layout.apply(config);
    EXPECT_TRUE(config::violations(layout, 4).empty());
    forecast::FitRequest fit = one.run;
    fit.config = config::resolved(layout, 4);
    EXPECT_LE(forecast::fit(fit).need, *one.run.domains.bytes);
    EXPECT_EQ(forecast::fit(fit).need, result.plan.fit.need);
  }
  for (size_t i = 1; i < search.results.size(); ++i) {
    EXPECT_GE(search.results[i].plan.step_s, search.results[i - 1].plan.step_s);
    EXPECT_FALSE(search.results[i].loses_by.empty() &&
                 search.results[i].plan.step_s > 1.001 * search.results[0].plan.step_s);
  }
  const config::Config best = config::parse(forecast::best_yaml(one, search));
  EXPECT_EQ(config::dump(best), config::dump(search.results[0].layout.apply(config)));
}

TEST(Search, KeepsTheParetoFront) {
  const PlanRequest one = request(small_model(2, 0, 4, 64), 2, "h100");
  const LayoutSearch search =
      forecast::search_layouts(one, {.results = 1 << 20, .margin = 1, .max_simulated = 1 << 20});
  for (const forecast::SearchResult& best : search.pareto) {
    for (const forecast::SearchResult& other : search.results)
      EXPECT_FALSE(other.plan.step_s < best.plan.step_s && other.plan.fit.need < best.plan.fit.need);
  }
}

TEST(Search, NamesImpossibleRuns) {
  PlanRequest one = request(small_model(2, 0, 4, 32), 2, "h100");
  one.run.domains.bytes = 1000;
  try {
    forecast::search_layouts(one);
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("no layout of"), std::string::npos) << error.what();
  }
}

// Stages with equal layers share a trace: the same prediction as of every rank alone.
TEST(StagePredictor, EqualsPredictRank) {
  config::Config config = small_model(8, 0, 16, 64);
  config.parallel.pipeline_model_parallel_size = 4;
  config.parallel.data_parallel_sharding_strategy = config::ShardingStrategy::optim;
  config = config::resolved(config, 8);
  const forecast::FitRequest run = request(config, 8, "h100").run;
  const forecast::Fit shared = forecast::fit(run, forecast::make_stage_predictor()), alone = forecast::fit(run);
  ASSERT_EQ(shared.ranks.size(), alone.ranks.size());
  for (size_t i = 0; i < shared.ranks.size(); ++i) {
    EXPECT_EQ(shared.ranks[i].peak, alone.ranks[i].peak);
    EXPECT_EQ(shared.ranks[i].prediction.flops, alone.ranks[i].prediction.flops);
    EXPECT_EQ(shared.ranks[i].prediction.model_flops, alone.ranks[i].prediction.model_flops);
  }
}

}  // namespace
}  // namespace metroplex::test::search_test
