#include "topology/rank_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace metroplex::topology::rank_grid_test {
namespace {

config::Parallel layout(int tp, int cp, int pp, int ep = 1, int etp = 0) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.context_parallel_size = cp;
  parallel.pipeline_model_parallel_size = pp;
  parallel.expert_model_parallel_size = ep;
  parallel.expert_tensor_parallel_size = etp;
  return parallel;
}

std::string refusal(int world, const config::Parallel& parallel) {
  try {
    RankGrid grid(world, parallel);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.room(), "topology");
    return error.what();
  }
  return "";
}

TEST(RankGrid, TheWorkedExampleOfTwoNodesHasTheGroupsDerivedByHand) {
  const RankGrid grid(16, layout(4, 1, 2, 4, 1));
  EXPECT_EQ(grid.size(Axis::dp), 2);
  EXPECT_EQ(grid.size(Axis::edp), 2);
  EXPECT_EQ(grid.groups(Axis::tp), (RankGroups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(grid.groups(Axis::dp),
            (RankGroups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(grid.groups(Axis::ep), grid.groups(Axis::tp));
  EXPECT_EQ(grid.groups(Axis::edp), grid.groups(Axis::dp));
  EXPECT_EQ(grid.groups(Axis::etp).size(), 16u);
}

TEST(RankGrid, ModelParallelGroupsJoinTensorAndPipelineRanks) {
  const RankGrid grid(16, layout(2, 1, 4));
  EXPECT_EQ(grid.groups({Axis::pp, Axis::tp}),
            (RankGroups{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
}

TEST(RankGrid, ContextAndExpertsFoldOntoTheSameEightRanks) {
  const RankGrid grid(8, layout(1, 8, 1, 8));
  EXPECT_EQ(grid.group_ranks(5, Axis::cp), grid.group_ranks(5, Axis::ep));
  EXPECT_EQ(grid.size(Axis::dp), 1);
  EXPECT_EQ(grid.size(Axis::edp), 1);
}

TEST(RankGrid, GroupsOfAnyFamilyPartitionTheWorldAndAgreeWithTheLookups) {
  const RankGrid grid(96, layout(2, 3, 2, 4, 3));
  std::vector<AxisSet> families{{}};
  for (Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) {
    families.push_back({axis});
    for (Axis b : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) families.push_back({axis, b});
  }
  for (Axis a : {Axis::etp, Axis::ep, Axis::edp, Axis::pp}) {
    for (Axis axis : {Axis::etp, Axis::ep, Axis::edp, Axis::pp}) families.push_back({a, axis});
  }
  for (AxisSet family : families) {
    std::set<int> seen;
    for (const Ranks& group : grid.groups(family)) {
      EXPECT_EQ(static_cast<int>(group.size()), grid.size(family)) << to_string(family);
      for (size_t k = 0; k < group.size(); ++k) {
        EXPECT_TRUE(seen.insert(group[k]).second) << to_string(family);
        ASSERT_EQ(grid.group_ranks(group[k], family), group) << to_string(family);
        ASSERT_EQ(grid.index_in_group(group[k], family), static_cast<int>(k));
        for (const AxisInfo& axis : kAxes) {
          if (axis.dense && !axis.expert && !family.contains(axis.axis) && !family.contains(Axis::etp) &&
              !family.contains(Axis::ep) && !family.contains(Axis::edp) && axis.axis != Axis::pp) {
            ASSERT_EQ(grid.coordinates(group[k]).at(axis.axis), grid.coordinates(group[0]).at(axis.axis));
          }
        }
      }
    }
    EXPECT_EQ(seen.size(), 96u) << to_string(family);
  }
}

TEST(RankGrid, CoordinatesLeadBackToTheRankOnBothGrids) {
  for (const char* order : {"tp-cp-ep-dp-pp", "ep-tp-cp-dp-pp", "dp-tp-cp-ep-pp", "TP-EP-CP-DP-PP"}) {
    config::Parallel parallel = layout(2, 2, 3, 4, 1);
    parallel.order = order;
    const RankGrid grid(48, parallel);
    for (int rank = 0; rank < 48; ++rank) {
      EXPECT_EQ(grid.rank(grid.coordinates(rank)), rank) << order;
      const Coordinates at = grid.coordinates(rank);
      const int expert_rank = at.etp * grid.expert().stride(Axis::tp) + at.ep * grid.expert().stride(Axis::ep) +
                              at.edp * grid.expert().stride(Axis::dp) + at.pp * grid.expert().stride(Axis::pp);
      EXPECT_EQ(expert_rank, rank) << order;
    }
  }
}

TEST(RankGrid, TheFirstAxisOfTheOrderVariesFastest) {
  config::Parallel parallel = layout(2, 1, 2);
  parallel.order = "dp-tp-cp-ep-pp";
  const RankGrid grid(8, parallel);
  EXPECT_EQ(grid.group_ranks(0, Axis::dp), (Ranks{0, 1}));
  EXPECT_EQ(grid.group_ranks(0, Axis::tp), (Ranks{0, 2}));
  EXPECT_EQ(grid.group_ranks(0, Axis::pp), (Ranks{0, 4}));
}

TEST(RankGrid, DescribeNamesTheAxesThatMatter) {
  EXPECT_EQ(RankGrid(16, layout(2, 1, 2)).format_coordinates(7), "tp 1 pp 0 dp 3");
  EXPECT_EQ(RankGrid(16, layout(2, 2, 2, 4, 1)).format_coordinates(15), "tp 1 pp 1 dp 1 cp 1 ep 3 etp 0 edp 1");
}

TEST(RankGrid, WeightShardsVaryRightAfterTensorParallel) {
  const RankGrid grid(8, layout(2, 1, 1), 2);
  EXPECT_EQ(grid.groups(Axis::gtp), (RankGroups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(grid.size(Axis::dp), 2);
}

TEST(RankGrid, AnOrderMayPlaceTheWeightShards) {
  config::Parallel parallel = layout(2, 1, 1);
  parallel.order = "tp-dp-gtp_remat-cp-ep-pp";
  const RankGrid grid(8, parallel, 2);
  EXPECT_EQ(grid.groups(Axis::gtp), (RankGroups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(grid.group_ranks(0, Axis::dp), (Ranks{0, 2}));
}

TEST(RankGrid, AWorldThatIsNotAMultipleOfTheDegreesIsRefusedWithBothNumbers) {
  const std::string dense = refusal(48, layout(8, 1, 4));
  EXPECT_NE(dense.find("48 ranks"), std::string::npos) << dense;
  EXPECT_NE(dense.find("tp*cp*pp = 32"), std::string::npos) << dense;
  const std::string expert = refusal(8, layout(2, 1, 1, 8));
  EXPECT_NE(expert.find("etp*ep*pp = 16"), std::string::npos) << expert;
}

TEST(RankGrid, ZeroNegativeAndHugeDegreesAreRefusedByKey) {
  EXPECT_NE(refusal(8, layout(0, 1, 1)).find("tensor_model_parallel_size is 0"), std::string::npos);
  EXPECT_NE(refusal(8, layout(1, -2, 1)).find("context_parallel_size is -2"), std::string::npos);
  config::Parallel huge = layout(1, 1, 1);
  huge.tensor_model_parallel_size = int64_t{1} << 62;
  EXPECT_NE(refusal(8, huge).find("tensor_model_parallel_size"), std::string::npos);
  for (const int64_t degree : {int64_t{1} << 30, int64_t{1} << 31, int64_t{1} << 40}) {
    huge.tensor_model_parallel_size = degree;
    EXPECT_NE(refusal(8, huge).find("; a degree is a whole number"), std::string::npos) << degree;
  }
  EXPECT_NE(refusal(0, layout(1, 1, 1)).find("0 ranks"), std::string::npos);
  for (const int degree : {1 << 20, 1 << 29})
    EXPECT_NE(refusal(8, layout(degree, degree, degree)).find("not a multiple"), std::string::npos) << degree;
}

TEST(RankGrid, AnOrderThatIsIncompleteUnknownOrRepeatedIsRefused) {
  const auto with_order = [](const char* order) {
    config::Parallel parallel = layout(2, 2, 2);
    parallel.order = order;
    return refusal(16, parallel);
  };
  EXPECT_NE(with_order("tp-dp-pp").find("add cp"), std::string::npos);
  EXPECT_NE(with_order("tp-cp-dq-pp").find("did you mean 'dp'"), std::string::npos);
  EXPECT_NE(with_order("tp-cp-cp-dp-pp").find("twice"), std::string::npos);
  EXPECT_NE(with_order("tp-cp-edp-dp-pp").find("names 'edp'"), std::string::npos);
  EXPECT_NE(with_order("").find("parallel.order '' names ''"), std::string::npos);
}

TEST(RankGrid, AnOrderWithoutPpLastNeedsEqualDataParallelSizes) {
  config::Parallel parallel = layout(1, 2, 2);
  parallel.order = "tp-cp-ep-pp-dp";
  EXPECT_NE(refusal(8, parallel).find("does not end with pp"), std::string::npos);
  parallel.context_parallel_size = 1;
  EXPECT_EQ(refusal(8, parallel), "");
}

TEST(RankGrid, GridsThatDisagreeOnPipelineGroupsAreRefused) {
  config::Parallel parallel = layout(2, 1, 2, 2, 1);
  parallel.order = "tp-cp-pp-ep-dp";  // the experts' ep comes after pp, and etp is smaller than tp before it
  EXPECT_NE(refusal(8, parallel).find("different pipeline groups"), std::string::npos);
}

TEST(RankGrid, VirtualStagesNeedPipelineStagesAndInstancesNeedDivisors) {
  config::Parallel parallel = layout(2, 1, 1);
  parallel.virtual_pipeline_model_parallel_size = 2;
  EXPECT_NE(refusal(4, parallel).find("virtual_pipeline"), std::string::npos);
  parallel = layout(1, 1, 1);
  parallel.num_distributed_optimizer_instances = 4;
  EXPECT_NE(refusal(6, parallel).find("num_distributed_optimizer_instances = 4"), std::string::npos);
}

TEST(RankGrid, FamiliesThatMixTheGridsAndRanksOutsideTheWorldAreRefused) {
  const RankGrid grid(16, layout(2, 2, 2, 4, 1));
  EXPECT_THROW(grid.groups({Axis::tp, Axis::ep}), base::Error);
  EXPECT_THROW(grid.group_ranks(16, Axis::tp), base::Error);
  EXPECT_THROW(grid.coordinates(-1), base::Error);
  EXPECT_THROW(grid.rank({.tp = 2}), base::Error);
}

TEST(Axes, FamilyNamesAreReadInAnyOrderAndCaseAndWrittenInOneWay) {
  EXPECT_EQ(parse_axes("CP-dp"), (AxisSet{Axis::dp, Axis::cp}));
  EXPECT_EQ(to_string({Axis::cp, Axis::dp, Axis::tp}), "tp-dp-cp");
  EXPECT_EQ(to_string({Axis::pp, Axis::ep, Axis::etp}), "etp-ep-pp");
  EXPECT_THROW(parse_axes("dp--cp"), base::Error);
}

TEST(OrderedGrid, ARankOffsetMovesEveryRank) {
  const OrderedGrid grid({.tp = 2, .dp = 2, .pp = 2, .order = "tp-dp-pp", .rank_offset = 8});
  EXPECT_EQ(grid.groups(Axis::pp), (RankGroups{{8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(grid.group_ranks(13, Axis::pp), (Ranks{9, 13}));
  EXPECT_EQ(grid.coordinate(13, Axis::pp), 1);
}

TEST(OrderedGrid, SizesThatDoNotMakeTheWorldAreRefused) {
  EXPECT_THROW(masked_orthogonal_groups(24, {2, 3, 5}, {true, false, false}), base::Error);
  EXPECT_THROW(masked_orthogonal_groups(24, {2, 3}, {true, false}), base::Error);
  EXPECT_THROW(masked_orthogonal_groups(6, {2, 3}, {true}), base::Error);
  EXPECT_THROW(masked_orthogonal_groups(0, {0}, {true}), base::Error);
}

}  // namespace
}  // namespace metroplex::topology::rank_grid_test
