#include "topology/cluster.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace metroplex::topology::cluster_test {
namespace {

TEST(Cluster, TensorGroupsStayInsideANodeWhilePipelinesCross) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 4;
  parallel.pipeline_model_parallel_size = 2;
  const RankGrid grid(16, parallel);
  const Cluster cluster(16, 8);
  EXPECT_EQ(cluster.num_nodes(), 2);
  EXPECT_FALSE(reach(cluster, grid.groups(Axis::tp)).inter_node());
  EXPECT_FALSE(reach(cluster, grid.groups(Axis::dp)).inter_node());
  const Reach pipelines = reach(cluster, grid.groups(Axis::pp));
  EXPECT_EQ(pipelines.num_crossing, 8);
  EXPECT_EQ(pipelines.num_groups, 8);
  EXPECT_EQ(pipelines.max_nodes, 2);
}

TEST(Cluster, OnlySomeGroupsCrossWhenTheSizesDoNotFit) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 4;
  const Reach far = reach(Cluster(12, 6), RankGrid(12, parallel).groups(Axis::tp));
  EXPECT_EQ(far.num_groups, 3);
  EXPECT_EQ(far.num_crossing, 1);  // {4, 5, 6, 7}
  EXPECT_EQ(Cluster(13, 6).num_nodes(), 3);
}

TEST(Cluster, ReachIsThatOfTheWidestGroupNotOfTheLast) {
  const Reach wide = reach(Cluster(6, 2), RankGroups{{0, 2, 4}, {1}, {3, 5}});
  EXPECT_EQ(wide.group_size, 3);
  EXPECT_EQ(wide.max_nodes, 3);
  EXPECT_EQ(wide.num_crossing, 2);
}

TEST(Cluster, FamiliesOfOneMemberAndRepeatedFamiliesAreNotTold) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 2;
  const RankGrid grid(8, parallel);
  std::vector<std::string> names;
  for (const auto& entry : list_group_reach(Cluster(8, 4), grid)) names.push_back(to_string(entry.kind.axes));
  EXPECT_EQ(names, (std::vector<std::string>{"tp", "etp", "edp", "dp", "tp-dp"}));
}

TEST(Cluster, ANodeNeedsAtLeastOneGpu) { EXPECT_THROW(Cluster(8, 0), base::Error); }

}  // namespace
}  // namespace metroplex::topology::cluster_test
