// Training with replicas of hot experts equals training without: on every grid, eager and as a graph, resumed with
// another number of slots or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "moe/load_meter.h"
#include "plan/echo.h"
#include "support/poisoned.h"
#include "run/expert_loads.h"
#include "run/replica_runs.h"

namespace metroplex::test::echo_ranks_test {
namespace {

files::PosixFileSystem disk;

using namespace replica_runs;

// Same tolerances as layouts against one rank: weight gradients are summed in another order over a few steps.
void expect_near(const ExpertRun& got, const ExpertRun& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 1e-12 * want.losses[i]);
  for (size_t i = 0; i < want.norms.size(); ++i) EXPECT_NEAR(got.norms[i], want.norms[i], 1e-10 * want.norms[i]);
  for (size_t i = 0; i < want.evaluated.size(); ++i)
    EXPECT_NEAR(got.evaluated[i], want.evaluated[i], 1e-12 * want.evaluated[i]);
  ASSERT_EQ(got.state.size(), want.state.size()) << "clones are no state";
  for (const auto& [name, values] : want.state)
    EXPECT_LE((got.state.at(name) - values).abs().max().item<double>(), 1e-10) << name;
}

TEST(EchoRanks, TrainsAsWithoutClones) {
  const NanFillGuard poisoned;
  for (const ExpertGrid& grid : kGrids) {
    SCOPED_TRACE(words(grid));
    const ExpertRun want = train_steps(experts(grid, {}), grid, 4);
    for (const Replicas& replicas :
         {Replicas{1}, Replicas{1, config::EchoPlanner::exact}, Replicas{.slots = 2, .random = true}}) {
      if (replicas.slots > 4 - 4 / grid.ep) continue;
      const ExpertRun got = train_steps(experts(grid, replicas), grid, 4);
      expect_near(got, want);
      EXPECT_GT(got.replicas, 0);
      for (const char* form : {kFull, kExperts})
        expect_same_bits(train_steps(experts(grid, replicas, form), grid, 4), got);
      config::Config again = experts(grid, replicas);
      again.model.moe_echo_recompute_expert_dispatch = true;
      expect_same_bits(train_steps(again, grid, 4), got);
    }
  }
}

// As many slots as local experts, and buffers for the even load: no step overflows, and none synchronizes with the
// host.
TEST(EchoRanks, ExactFitsIntoBuffersOfTheEvenLoad) {
  const NanFillGuard poisoned;
  for (const ExpertGrid& grid : kGrids) {
    SCOPED_TRACE(words(grid));
    const int64_t slots = 4 / grid.ep;
    const ExpertRun want = train_steps(experts(grid, {slots, config::EchoPlanner::exact}), grid, 6);
    const config::Config config = experts(grid, {slots, config::EchoPlanner::exact, 1.0});
    const ExpertRun got = train_steps(config, grid, 6);
    expect_same_bits(got, want);
    EXPECT_EQ(got.times_repeated(), 0);
    EXPECT_EQ(train_steps(experts(grid, {0, config::EchoPlanner::capfill, 1.0}), grid, 6).times_repeated(), 6);
    config::Config graphs = config;
    graphs.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
    graphs.train.cuda_graph_warmup_steps = 1;
    config::check(graphs, grid.layout.ranks());
    expect_same_bits(train_steps(graphs, grid, 6), want);
  }
}

// Random rows ignore the load and sometimes overflow the buffers: the step runs again.
TEST(EchoRanks, StepsThatOverflowRunAgain) {
  const ExpertGrid& grid = kGrids[0];
  const ExpertRun want = train_steps(experts(grid, {.slots = 1, .random = true}), grid, 6);
  const ExpertRun got = train_steps(experts(grid, {.slots = 1, .room = 1.3, .random = true}), grid, 6);
  expect_same_bits(got, want);
  EXPECT_GT(got.times_repeated(), 0);
}

std::vector<std::string> dumped_lines(const std::string& folder, int rank) {
  std::ifstream file(folder + "/clones-" + std::to_string(rank) + ".jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The dumped counts are the plan's input: planning from them gives the dumped plan.
TEST(EchoRanks, DumpedCountsGiveTheDumpedPlans) {
  const Folder folder;
  const ExpertGrid& grid = kGrids[0];
  config::Config config = experts(grid, {1});
  config.model.moe_echo_dump_dir = folder.at("plans");
  train_steps(config, grid, 2);
  std::vector<std::string> first;
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<std::string> lines = dumped_lines(folder.at("plans"), rank);
    EXPECT_EQ(lines.size(), 2U * 3 * 2) << "steps, layers with experts, microbatches";
    if (rank == 0) first = lines;
    EXPECT_EQ(lines, first) << "every rank plans alike";
  }
  int replicas = 0;
  for (const std::string& line : first) {
    const auto json = nlohmann::json::parse(line);
    std::vector<int64_t> counts, source_rows;
    for (const auto& row : json.at("counts")) counts.insert(counts.end(), row.begin(), row.end());
    for (const auto& row : json.at("source_rows")) source_rows.insert(source_rows.end(), row.begin(), row.end());
    const plan::EchoPlan plan = plan::plan_echo({counts.data(), {4, 4, 1}}, {});
    EXPECT_EQ(plan.owner, json.at("owners").get<std::vector<int32_t>>());
    EXPECT_EQ(plan.source_rows, source_rows);
    EXPECT_EQ(plan.final_loads, json.at("loads").at(1).get<std::vector<int64_t>>());
    replicas += plan.num_replicas();
  }
  EXPECT_GT(replicas, 0);
}

struct NullLog final : base::Log {
  void info(const std::string&) override {}
  void warn(const std::string& line) override { ADD_FAILURE() << line; }
};

double unevenness(const nlohmann::json& loads) {
  const auto of = loads.get<std::vector<double>>();
  return *std::max_element(of.begin(), of.end()) * static_cast<double>(of.size()) /
         std::accumulate(of.begin(), of.end(), 0.0);
}

// Each table averages the plans that both groups of ranks dumped since the previous table. Random plans have any
// imbalance, before and after.
TEST(EchoRanks, TheTableHasMeansOverThePlansSinceTheLast) {
  const Folder folder;
  const ExpertGrid& grid = kGrids[2];
  config::Config config = experts(grid, {.slots = 2, .random = true}, kFull);
  config.model.moe_echo_dump_dir = folder.at("plans");
  config.train.log_experts_interval = 2;
  std::vector<std::vector<run::ExpertMetrics>> tables;
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    NullLog log;
    run::ExpertLoads loads(assembly->process, assembly->model, disk, log);
    for (int64_t step = 0; step < 4; ++step) {
      step_at(*assembly, step);
      const auto table = loads.after_step(step + 1);
      if (world.rank() == 0 && step % 2 == 1) tables.push_back(table);
    }
  });
  ASSERT_EQ(tables.size(), 2U);
  for (size_t interval = 0; interval < 2; ++interval) {
    std::map<int64_t, run::ReplicaMetrics> expected;
    const size_t of_interval = 2 * 3 * 2, plans = 2 * 2 * 2;  // lines of a rank; of a layer in both groups
    for (const int rank : {0, 3}) {
      const std::vector<std::string> lines = dumped_lines(folder.at("plans"), rank);
      ASSERT_EQ(lines.size(), 2 * of_interval);
      for (size_t i = 0; i < of_interval; ++i) {
        const auto json = nlohmann::json::parse(lines[interval * of_interval + i]);
        const auto owners = json.at("owners").get<std::vector<int>>();
        const double before = unevenness(json.at("loads").at(0)), after = unevenness(json.at("loads").at(1));
        const int64_t layer = json.at("layer");
        const auto [of, fresh] = expected.try_emplace(layer, run::ReplicaMetrics{0, 0, 0, 0, 0});
        of->second.replicas +=
            static_cast<double>(std::count_if(owners.begin(), owners.end(), [](int e) { return e >= 0; }));
        of->second.before += before;
        of->second.after += after;
        of->second.worst = std::max(of->second.worst, after);
      }
    }
    ASSERT_EQ(tables[interval].size(), 3U);
    for (const run::ExpertMetrics& layer : tables[interval]) {
      SCOPED_TRACE(base::concat("table ", interval, ", layer ", layer.layer));
      ASSERT_TRUE(layer.replicas.has_value());
      const run::ReplicaMetrics& want = expected.at(layer.layer);
      EXPECT_DOUBLE_EQ(layer.replicas->replicas, want.replicas / plans);
      EXPECT_DOUBLE_EQ(layer.replicas->before, want.before / plans);
      EXPECT_DOUBLE_EQ(layer.replicas->after, want.after / plans);
      EXPECT_DOUBLE_EQ(layer.replicas->worst, want.worst);
      EXPECT_GT(layer.replicas->ms, 0);
      EXPECT_LT(layer.replicas->ms, 60e3);
    }
  }
}

TEST(EchoRanks, CheckpointsGoOnWithOtherSlotsOrNone) {
  const Folder folder;
  const ExpertGrid& saved_on = kGrids[0];
  const ExpertGrid& other = kGrids[2];  // of the same dp, which global_aux_loss depends on
  const std::string half = folder.path() + "/half";
  const Outcome whole = run_leg(experts(saved_on, {2}), {saved_on.layout, "", "", 0, 4});
  const Outcome first = run_leg(experts(saved_on, {2}), {saved_on.layout, "", half, 0, 2});
  for (const auto& [grid, slots] : {std::pair(&saved_on, int64_t{2}), std::pair(&saved_on, int64_t{1}),
                                    std::pair(&saved_on, int64_t{0}), std::pair(&other, int64_t{1})}) {
    const Outcome second = run_leg(experts(*grid, {slots}), {grid->layout, half, "", 2, 4});
    ASSERT_TRUE(second.loaded.loaded);
    ASSERT_EQ(second.state.size(), whole.state.size());
    for (const auto& [name, values] : whole.state) {
      const double difference = (second.state.at(name) - values).abs().max().item<double>();
      EXPECT_LE(difference, grid == &saved_on && slots == 2 ? 0 : 1e-10) << name << ", slots " << slots;
    }
  }
}

}  // namespace
}  // namespace metroplex::test::echo_ranks_test
