// The search finds the layout that an exhaustive comparison finds, and proposes only layouts that can run.
#include "forecast/search.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/expert_load.h"
#include "forecast/layout_estimate.h"
#include "forecast/memory_ratios.h"
#include "forecast/stage_traces.h"
#include "support/error_of.h"
#include "support/notes.h"

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

const forecast::SearchLimits kExhaustive{
    .results = 1 << 20, .margin = 1, .most_saved = 1e30, .max_simulated = 1 << 20, .refined = 0};
const forecast::SearchLimits kFast{.refined = 0};

// METROPLEX_SEARCH_CASES=200 runs more cases.
TEST(Search, EqualsExhaustiveSearch) {
  const char* const given = std::getenv("METROPLEX_SEARCH_CASES");
  const int cases = given == nullptr ? 3 : std::atoi(given);
  std::mt19937 random(7);
  const auto pick = [&](const std::vector<int64_t>& values) { return values[random() % values.size()]; };
  const auto start = std::chrono::steady_clock::now();
  int64_t candidates = 0, exhaustive = 0, simulated = 0;
  double highest = 0;
  for (int i = 0; i < cases; ++i) {
    const auto world = static_cast<int>(pick({1, 2, 2, i % 20 == 0 ? 4 : 3}));
    const int64_t layers = pick({1, 2, 3}), experts = world < 4 ? pick({0, 0, 2}) : 0;
    const config::Config config = small_model(layers, experts, world * pick({1, 2}), pick({32, 128, 512}));
    PlanRequest one = request(config, world, i % 2 == 0 ? "h100" : "b200");
    int64_t least = 0, most = 0;
    for (const bool limited : {false, true}) {
      // Every other case leaves only the smallest layouts and those with offload.
      if (limited) one.run.domains.bytes = i % 2 == 0 ? (least + most) / 2 : least;
      const LayoutSearch all = forecast::search_layouts(one, kExhaustive),
                         fast = forecast::search_layouts(one, kFast);
      EXPECT_DOUBLE_EQ(fast.results[0].plan.step_s, all.results[0].plan.step_s)
          << "case " << i << ": " << fast.results[0].layout.to_string(world) << " instead of "
          << all.results[0].layout.to_string(world);
      EXPECT_LE(fast.simulated, all.simulated);
      least = all.pareto.front().plan.fit.need, most = all.results[0].plan.fit.need;
      candidates += all.candidates, exhaustive += all.simulated, simulated += fast.simulated;
      for (const forecast::SearchResult& result : all.results)
        highest = std::max(highest, result.estimate_s / result.plan.step_s);
    }
  }
  std::printf(
      "%d cases, %lld candidates, %lld simulated exhaustively, %lld by the search, %.1f s; estimates at most "
      "%.3f of the simulated times\n",
      cases, static_cast<long long>(candidates), static_cast<long long>(exhaustive),
      static_cast<long long>(simulated),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), highest);
}

// Layers of hundreds of MB, so that tables and libraries hardly count.
TEST(LayoutEstimate, BytesAreCloseToExactMemory) {
  config::Config config = small_model(8, 4, 16, 4096);
  config.model.hidden_size = 2048, config.model.ffn_hidden_size = 8192;
  const PlanRequest one = request(config, 8, "h100");
  const std::vector<double> ratios = memory_ratios(one, 29);
  ASSERT_GT(ratios.size(), 60u);
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  EXPECT_GT(sum / static_cast<double>(ratios.size()), 0.85);  // 0.90 of 136 layouts when written
}

// The search tries offload only for layouts that memory refuses.
TEST(Search, OffloadNeverSpeedsUp) {
  PlanRequest one = request(small_model(2, 0, 4, 512), 2, "h100");
  const config::Config config = one.run.config;
  const auto step_s = [&](const forecast::Layout& layout) {
    PlanRequest same = one;
    same.run.config = config::resolved(layout.apply(config), 2);
    return forecast::plan_run(same).step_s;
  };
  const std::vector<forecast::Layout> layouts = forecast::list_layouts(one);
  int compared = 0;
  for (size_t i = 0; i < layouts.size(); i += 3) {
    if (!config::violations(layouts[i].apply(config), 2).empty()) continue;
    const double plain = step_s(layouts[i]);
    for (const forecast::Layout& offload : forecast::list_offloads(one, layouts[i])) {
      EXPECT_GE(step_s(offload), plain) << offload.to_string(2);
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

// Simulates the product of all further settings of the layout.
double best_of_product(PlanRequest one, const forecast::Layout& layout) {
  const config::Config config = one.run.config;
  std::vector<forecast::Layout> layouts{layout};
  for (const forecast::Alternatives& alternatives : list_settings(one, layout)) {
    for (size_t i = layouts.size(); i-- > 0;) {
      for (const std::vector<std::string>& settings : alternatives) {
        forecast::Layout more = layouts[i];
        more.settings.insert(more.settings.end(), settings.begin(), settings.end());
        layouts.push_back(more);
      }
    }
  }
  double best = INFINITY;
  for (const forecast::Layout& each : layouts) {
    one.run.config = each.apply(config);
    if (!config::violations(one.run.config, one.run.world_size).empty()) continue;
    one.run.config = config::resolved(one.run.config, one.run.world_size);
    best = std::min(best, forecast::plan_run(one).step_s);
  }
  return best;
}

// Muon's update runs on whole matrices: the rules refuse its offload.
TEST(Search, OffloadsLargeLayouts) {
  for (const char* const optimizer : {"adam", "muon"}) {
    config::Config config = small_model(2, 0, 4, 512);
    config.optim.optimizer = optimizer;
    PlanRequest one = request(config, 2, "h100");
    // The layout with the most memory needs offload then.
    int64_t most = 0;
    for (const forecast::SearchResult& result : forecast::search_layouts(one, kExhaustive).results)
      most = std::max(most, result.plan.fit.need);
    one.run.domains.bytes = most - 1;
    int offloaded = 0;
    for (const forecast::SearchResult& result : forecast::search_layouts(one, kExhaustive).results) {
      offloaded += result.layout.offloads_activations || result.layout.offloads_optimizer ? 1 : 0;
      EXPECT_TRUE(config::violations(result.layout.apply(config), 2).empty()) << result.layout.to_string(2);
    }
    // The state of Muon cannot be offloaded, and its update has the peak.
    EXPECT_TRUE(offloaded > 0 || config.optim.optimizer == "muon");
  }
}

TEST(Search, RefinesTheBestLayout) {
  for (const int64_t experts : {0, 16}) {
    config::Config config =
        small_model(1, experts, 16, 1023);  // one head, one layer, odd length: tp, pp and cp are 1
    config.model.num_attention_heads = 1;
    config.model.hidden_size = 2048;
    config.model.ffn_hidden_size = 8192;
    PlanRequest one = request(config, 16, "h100");
    one.experts.imbalance = 4;
    const LayoutSearch plain = forecast::search_layouts(one, kFast), refined = forecast::search_layouts(one);
    EXPECT_LT(refined.results[0].plan.step_s, plain.results[0].plan.step_s) << experts;
    EXPECT_FALSE(refined.results[0].layout.settings.empty());
    EXPECT_LE(refined.results[0].plan.step_s, best_of_product(one, plain.results[0].layout)) << experts;
    one.run.config = config::resolved(refined.results[0].layout.apply(config), 16);
    EXPECT_EQ(forecast::plan_run(one).step_s, refined.results[0].plan.step_s);
    std::printf("%s\n", refined.results[0].layout.to_string(16).c_str());
  }
}

// Gathers of parameters and exchanges of experts use one network. The estimate assumes that gathers are spread evenly
// over a step. It is 0.82 of the simulated time; without the sharing it would be 0.70, with twice the sharing 0.93.
TEST(Search, EstimatesSharedLinks) {
  config::Config config = small_model(8, 16, 512, 1024);
  config.model.hidden_size = 1024;
  config.model.ffn_hidden_size = 4096;
  PlanRequest one = request(config, 64, "h100");
  const forecast::Layout layout{.ep = 16, .sharding = config::ShardingStrategy::optim_grads_params};
  const double estimate = forecast::LayoutEstimator(one).estimate(layout).seconds;
  one.run.config = config::resolved(layout.apply(config), 64);
  const double simulated = forecast::plan_run(one).step_s;
  EXPECT_GT(estimate, 0.75 * simulated);
  EXPECT_LT(estimate, 0.9 * simulated);
}

// With align_param_gather, the stages do not gather one after another.
TEST(Search, AlignsGathersOfStages) {
  PlanRequest one = request(small_model(4, 0, 16, 64), 8, "h100");
  const forecast::Layout layout{.pp = 4, .sharding = config::ShardingStrategy::optim};
  const config::Config config = config::resolved(layout.apply(one.run.config), 8);
  one.run.config = config;
  const double aligned = forecast::plan_run(one).step_s;
  one.run.config.parallel.align_param_gather = false;
  EXPECT_LT(aligned, forecast::plan_run(one).step_s);
}

// The last stage needs the most memory: it holds the logits.
TEST(FittingPlan, ChecksEveryStage) {
  config::Config config = small_model(2, 0, 2, 128);
  config.model.vocab_size = 50000;
  PlanRequest one = request(config, 2, "h100");
  one.run.config = config::resolved(forecast::Layout{.pp = 2}.apply(config), 2);
  const forecast::RunPlan plan = forecast::plan_run(one);
  ASSERT_EQ(plan.fit.worst_rank().pp, 1);
  one.run.domains.bytes = plan.fit.need;
  const std::optional<forecast::RunPlan> fitting = forecast::plan_fitting_run(one);
  ASSERT_TRUE(fitting);
  EXPECT_EQ(fitting->step_s, plan.step_s);
  one.run.domains.bytes = plan.fit.need - 1;
  EXPECT_FALSE(forecast::plan_fitting_run(one));
}

TEST(HostTraffic, LengthensTheStep) {
  PlanRequest one = request(small_model(2, 0, 4, 512), 2, "h100");
  const forecast::RunPlan plain = [&] {
    one.run.config = config::resolved(forecast::Layout{}.apply(one.run.config), 2);
    return forecast::plan_run(one);
  }();
  one.machine.host_bytes_per_s = 1e6;
  one.run.config.memory.offload_activations = config::Offload::host;
  one.run.config.optim.optimizer_cpu_offload = true;
  const forecast::RunPlan plan = forecast::plan_run(one);
  const replay::RankTimes& times = plan.time.ranks[0];
  // Moments and main parameters take 12 bytes per parameter, and the buffers of a chunk less than one more.
  const auto params = static_cast<double>(plan.fit.worst_rank().prediction.num_params);
  EXPECT_GT(times.optimizer, 24 * params / 1e6);
  EXPECT_GT(times.exposed.at("host"), 1);
  EXPECT_NEAR(times.total(), plan.step_s, 1e-9 * plan.step_s);
  EXPECT_GT(plan.step_s, plain.step_s + times.exposed.at("host"));
}

TEST(ExpertBalance, DependsOnReplicaSlots) {
  config::Config config = small_model(1, 8, 8, 32);
  config.parallel.expert_model_parallel_size = 4;
  EXPECT_DOUBLE_EQ(forecast::expert_load(config, {2}).imbalance, 2);
  config.model.moe_enable_echo = true;
  config.model.moe_num_echo_experts = 4;
  const double one_slot = forecast::expert_load(config, {2}).imbalance;
  EXPECT_GE(one_slot, 1);
  EXPECT_LT(one_slot, 1.01 + 1e-5);  // moe_echo_eps, and rounding of 1e6 rows to whole rows of 4 sources
  EXPECT_GT(forecast::expert_load(config, {2}).replicas, 0);
  EXPECT_LE(forecast::expert_load(config, {2}).replicas, 1);
  EXPECT_EQ(forecast::expert_load(config, {1}).imbalance, 1);
  EXPECT_EQ(forecast::expert_load(config, {1}).replicas, 0);
}

// Two layers of 8 experts on 4 ranks: the busiest rank has 3 of 8 rows, then 2 of 8.
TEST(ExpertBalance, FollowsARecordedTrace) {
  config::Config config = small_model(2, 8, 8, 32);
  config.parallel.expert_model_parallel_size = 4;
  files::ExpertTrace trace{{.num_experts = 8, .topk = 2, .ep = 1, .etp = 1, .layers = {0, 1}},
                           {{1, {1, 1, 1, 2, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}, {}}}};
  const forecast::ExpertDemand demand = forecast::recorded_demand(trace, config.model);
  EXPECT_FALSE(demand.is_even());
  EXPECT_DOUBLE_EQ(forecast::expert_load(config, demand).imbalance, (1.5 + 1) / 2);
  config.parallel.expert_model_parallel_size = 8;
  EXPECT_DOUBLE_EQ(forecast::expert_load(config, demand).imbalance, (2.0 + 1) / 2);
  config.parallel.expert_model_parallel_size = 1;
  EXPECT_DOUBLE_EQ(forecast::expert_load(config, demand).imbalance, 1);
  config.parallel.expert_model_parallel_size = 8;
  config.model.moe_enable_echo = true;
  config.model.moe_num_echo_experts = 8;
  const replay::ExpertLoad replicated = forecast::expert_load(config, demand);
  EXPECT_LT(replicated.imbalance, 1.01 + 1e-5);  // as above
  EXPECT_GT(replicated.replicas, 0);
  // Many steps: evenly spaced samples.
  trace.steps.resize(100, trace.steps[0]);
  EXPECT_EQ(forecast::recorded_demand(trace, config.model).counts.size(), 64U);
  trace.head.topk = 1;
  expect_contains(catch_error([&] { forecast::recorded_demand(trace, config.model); }),
                  "topk = 1: must be model.moe_router_topk (2)");
  trace.head.topk = 2;
  trace.head.layers = {0};
  expect_contains(catch_error([&] { forecast::recorded_demand(trace, config.model); }),
                  "1 layers: must be the layers with experts (2)");
  trace.head.layers = {0, 1};
  trace.steps[0].tokens.assign(16, 0);
  expect_contains(catch_error([&] { forecast::recorded_demand(trace, config.model); }), "0 tokens in iteration 1");
  trace.steps.clear();
  expect_contains(catch_error([&] { forecast::recorded_demand(trace, config.model); }), "0 steps");
  trace.head.num_experts = 4;
  expect_contains(catch_error([&] { forecast::recorded_demand(trace, config.model); }),
                  "num_experts = 4: must be model.num_moe_experts (8)");
}

// Reading the batch only counts if it takes longer than the step.
TEST(Loader, IsExposedBeyondTheStep) {
  PlanRequest one = request(small_model(1, 0, 8, 32), 1, "h100");
  one.run.config = config::resolved(one.run.config, 1);
  one.run.config.data.mock_data = false;
  const forecast::RunPlan plain = forecast::plan_run(one);
  EXPECT_FALSE(plain.time.ranks[0].exposed.contains("loader"));
  const auto is_loader = [](const replay::SimulatedEvent& event) { return event.track == "loader"; };
  EXPECT_TRUE(std::any_of(plain.time.events.begin(), plain.time.events.end(), is_loader));
  const config::Train& train = one.run.config.train;
  const double bytes = 4 * static_cast<double>(train.global_batch_size * train.seq_length);
  one.machine.file_bytes_per_s = bytes / 10;
  one.machine.host_bytes_per_s = 0;
  const forecast::RunPlan slow = forecast::plan_run(one);
  EXPECT_DOUBLE_EQ(slow.step_s, 10);
  EXPECT_DOUBLE_EQ(slow.time.ranks[0].exposed.at("loader"), 10 - plain.step_s);
  one.run.config.data.mock_data = true;
  EXPECT_DOUBLE_EQ(forecast::plan_run(one).step_s, plain.step_s);
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

TEST(Search, FindsLayoutsOfModelsWithPatterns) {
  config::Config config = small_model(4, 0, 4, 32);
  config.model.position_embedding_type = "rope";
  config.model.window_size = 8, config.model.window_attn_skip_freq = "[1,0,0,1]";
  config.model.no_rope_freq = "[0,0,1,0]";
  EXPECT_FALSE(forecast::search_layouts(request(config, 2, "h100"), {.refined = 0}).results.empty());
  config.model.window_size = -1, config.model.attention_chunk_size = 8;
  config.model.query_scaling_beta = 0.1, config.model.query_scaling_floor = 4;
  EXPECT_FALSE(forecast::search_layouts(request(config, 2, "h100"), {.refined = 0}).results.empty());
}

TEST(Search, KeepsTheParetoFront) {
  const PlanRequest one = request(small_model(2, 0, 4, 64), 2, "h100");
  const LayoutSearch search = forecast::search_layouts(one, kExhaustive);
  for (const forecast::SearchResult& best : search.pareto) {
    for (const forecast::SearchResult& other : search.results)
      EXPECT_FALSE(other.plan.step_s < best.plan.step_s && other.plan.fit.need < best.plan.fit.need);
  }
}

std::string refusal(const PlanRequest& request) {
  try {
    forecast::search_layouts(request);
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

TEST(Search, NamesImpossibleRuns) {
  PlanRequest one = request(small_model(2, 0, 4, 32), 2, "h100");
  one.run.domains.bytes = 1000;
  EXPECT_NE(refusal(one).find("no layout of"), std::string::npos) << refusal(one);
}

TEST(Search, NamesTheRuleThatRefusesAllLayouts) {
  config::Config config = small_model(2, 0, 4, 64);
  config.precision.params_dtype = config::ParamsDtype::bf16;
  config.precision.fp4_format = config::Fp4Format::e2m1;
  config.precision.fp8_products = config::Fp8Products::library;
  config.model.num_query_groups = 1;  // refuses some layouts
  PlanRequest one = request(config, 8, "h100");
  one.run.capability = one.machine.capability;
  EXPECT_NE(refusal(one).find("10.0 or higher"), std::string::npos) << refusal(one);
}

// Layouts without selective recomputation have no modules.
TEST(Search, RefusesNoLayoutForRecomputedModules) {
  config::Config config = small_model(2, 0, 4, 64);
  const int64_t refused = forecast::search_layouts(request(config, 2, "h100"), kExhaustive).refused;
  config.memory.recompute_granularity = config::Recompute::selective;
  config.memory.recompute_modules = {"mlp", "layernorm"};
  EXPECT_EQ(forecast::search_layouts(request(config, 2, "h100"), kExhaustive).refused, refused);
}

void expect_equals_ranks_alone(const config::Config& config, int world) {
  const forecast::FitRequest run = request(config::resolved(config, world), world, "h100").run;
  const forecast::Fit shared = forecast::fit(run, forecast::make_stage_predictor()), alone = forecast::fit(run);
  ASSERT_EQ(shared.ranks.size(), alone.ranks.size());
  for (size_t i = 0; i < shared.ranks.size(); ++i) {
    EXPECT_EQ(shared.ranks[i].peak, alone.ranks[i].peak);
    EXPECT_EQ(shared.ranks[i].prediction.flops, alone.ranks[i].prediction.flops);
    EXPECT_EQ(shared.ranks[i].prediction.model_flops, alone.ranks[i].prediction.model_flops);
  }
}

// Stages with equal layers share a trace: the same prediction as of every rank alone.
TEST(StagePredictor, EqualsPredictRank) {
  config::Config config = small_model(8, 0, 16, 64);
  config.parallel.pipeline_model_parallel_size = 4;
  config.parallel.data_parallel_sharding_strategy = config::ShardingStrategy::optim;
  expect_equals_ranks_alone(config, 8);
}

// Ranks whose shards of the optimizer state differ share the passes. Buckets of 4 KB have shards of several sizes.
TEST(StagePredictor, SharesPassesOfDataRanks) {
  for (const auto sharding : {config::ShardingStrategy::no_shard, config::ShardingStrategy::optim,
                              config::ShardingStrategy::optim_grads, config::ShardingStrategy::optim_grads_params}) {
    for (const int64_t cp : {1, 2}) {
      config::Config config = small_model(3, 4, 24, 64);
      config.parallel.data_parallel_sharding_strategy = sharding;
      config.parallel.expert_model_parallel_size = 2;
      config.parallel.context_parallel_size = cp;
      config.parallel.ddp_bucket_size = 1000;
      expect_equals_ranks_alone(config, 8);
      config.optim.optimizer_cpu_offload = sharding != config::ShardingStrategy::no_shard;
      config.parallel.sequence_parallel = true;
      config.parallel.tensor_model_parallel_size = 2;
      expect_equals_ranks_alone(config, 8);
    }
  }
}

}  // namespace
}  // namespace metroplex::test::search_test
