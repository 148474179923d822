#include "topology/megatron_groups.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace metroplex::topology::megatron_groups_test {
namespace {

using OrderedJson = nlohmann::ordered_json;

const RankGroups& find_groups(const std::vector<NamedGroups>& all, const std::string& name) {
  for (const auto& family : all) {
    if (family.name == name) return family.groups;
  }
  throw std::runtime_error("no group " + name);
}

std::vector<std::string> group_names(const std::vector<NamedGroups>& all) {
  std::vector<std::string> names;
  for (const auto& family : all) names.push_back(family.name);
  return names;
}

// The conformance runner compares by name; this test compares the order of creation, in an order-preserving JSON.
TEST(MegatronGroups, FamiliesAreMadeInTheRecordedOrder) {
  std::ifstream stream(METROPLEX_SOURCE_DIR "/tests/vectors/rank_groups.json");
  const OrderedJson file = OrderedJson::parse(stream);
  int compared = 0;
  for (const auto& c : file.at("init_variants")) {
    if (!c.at("error").is_null()) continue;
    config::Parallel parallel;
    parallel.tensor_model_parallel_size = c.at("args").at("tp");
    parallel.context_parallel_size = c.at("args").at("cp");
    parallel.expert_model_parallel_size = c.at("args").at("ep");
    parallel.pipeline_model_parallel_size = c.at("args").at("pp");
    const OrderedJson kwargs = c.at("kwargs");
    parallel.num_distributed_optimizer_instances = kwargs.value("num_distributed_optimizer_instances", 1);
    MegatronOptions options;
    options.hybrid_context_parallel = kwargs.value("hybrid_context_parallel", false);
    options.hierarchical_context_parallel_sizes =
        kwargs.value("hierarchical_context_parallel_sizes", std::vector<int>{});
    int world = 0;
    for (const auto& group : c.at("groups").at("DATA_PARALLEL_GROUP_WITH_CP")) {
      for (const auto& rank : group) world = std::max(world, rank.get<int>() + 1);
    }
    std::vector<std::string> expected;
    const OrderedJson groups = c.at("groups");
    for (const auto& [name, lists] : groups.items()) expected.push_back(name);
    const RankGrid grid(world, parallel, kwargs.value("gtp_remat_size", 1));
    EXPECT_EQ(group_names(megatron_groups(grid, options)), expected) << c.at("name");
    ++compared;
  }
  EXPECT_GE(compared, 7);
}

TEST(MegatronGroups, AnUnevenHybridSizeLeavesAShortLastSlice) {
  config::Parallel parallel;
  MegatronOptions options;
  options.hybrid_context_parallel = true;
  const auto six = megatron_groups(RankGrid(6, parallel), options);
  EXPECT_EQ(find_groups(six, "HYBRID_DP_CP_GROUP_2"), (RankGroups{{0, 1}, {2, 3}, {4, 5}}));
  const auto names = group_names(six);
  EXPECT_EQ(std::count(names.begin(), names.end(), "HYBRID_DP_CP_GROUP_4"), 0);
  EXPECT_THROW(megatron_groups(RankGrid(5, parallel), options), base::Error);
  EXPECT_EQ(split_group({0, 1, 2, 3, 4}, 2), (RankGroups{{0, 1}, {2, 3}, {4}}));
}

TEST(MegatronGroups, EmbeddingRanksMayBeChosenByTheCaller) {
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = 4;
  MegatronOptions options;
  options.embedding = [](const Ranks& stages) { return Ranks{stages[0], stages[2], stages[3]}; };
  options.position_embedding = [](const Ranks& stages) { return Ranks{stages[0], stages[2]}; };
  const auto groups = megatron_groups(RankGrid(8, parallel), options);
  EXPECT_EQ(find_groups(groups, "EMBEDDING_GROUP"), (RankGroups{{0, 4, 6}, {1, 5, 7}}));
  EXPECT_EQ(find_groups(groups, "POSITION_EMBEDDING_GROUP"), (RankGroups{{0, 4}, {1, 5}}));
}

TEST(MegatronGroups, GlooTwinsAreLeftOutOnRequest) {
  MegatronOptions options;
  options.create_gloo_process_groups = false;
  for (const auto& name : group_names(megatron_groups(RankGrid(4, {}), options))) {
    EXPECT_FALSE(name.ends_with("|gloo")) << name;
  }
}

TEST(MegatronGroups, HierarchiesJoinNeighboursFirstAndNeedTheRightProduct) {
  const auto levels = hierarchical_groups({10, 11, 12, 13, 14, 15, 16, 17}, {2, 4});
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_EQ(levels[0], (RankGroups{{10, 11}, {12, 13}, {14, 15}, {16, 17}}));
  EXPECT_EQ(levels[1], (RankGroups{{10, 12, 14, 16}, {11, 13, 15, 17}}));
  EXPECT_THROW(hierarchical_groups({0, 1, 2, 3}, {2, 3}), base::Error);
  EXPECT_THROW(hierarchical_groups({0, 1, 2, 3}, {4, 0}), base::Error);
}

// Returns the shortest processor time of several runs, because the machine may be busy.
double time_for_groups(int64_t stages) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 8;
  parallel.context_parallel_size = 4;
  parallel.pipeline_model_parallel_size = stages;
  parallel.expert_model_parallel_size = 32;
  parallel.expert_tensor_parallel_size = 1;
  parallel.num_distributed_optimizer_instances = 2;
  MegatronOptions options;
  options.hierarchical_context_parallel_sizes = {2, 2};
  double best = 1e18;
  for (int run = 0; run < 3; ++run) {
    const std::clock_t start = std::clock();
    const RankGrid grid(1024 * stages, parallel);
    const auto groups = megatron_groups(grid, options);
    best = std::min(best, static_cast<double>(std::clock() - start));
    EXPECT_EQ(find_groups(groups, "TENSOR_MODEL_PARALLEL_GROUP").size(), static_cast<size_t>(128 * stages));
  }
  return best;
}

// 64 times the ranks take 64 times as long if the work is linear, and 4096 times if it is quadratic. The limit is the
// geometric mean.
TEST(MegatronGroups, TimeGrowsLinearly) { EXPECT_LT(time_for_groups(64) / time_for_groups(1), 512); }

}  // namespace
}  // namespace metroplex::topology::megatron_groups_test
