#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/echo_cases.h"
#include "plan/echo_parts.h"
#include "support/echo_check.h"

namespace metroplex::plan::echo_test {
namespace {

using config::EchoPlanner;
using echo_cases::Case;

constexpr EchoPlanner kPlanners[] = {EchoPlanner::greedy, EchoPlanner::binpack, EchoPlanner::capfill,
                                     EchoPlanner::exact};

EchoOptions with(EchoPlanner planner, int ranks_per_node = 0) {
  EchoOptions options;
  options.planner = planner;
  options.ranks_per_node = ranks_per_node;
  return options;
}

EchoPlan checked(const Case& test_case, int slots, const EchoOptions& options) {
  EchoPlan plan = plan_echo(test_case.with(slots), options);
  EXPECT_EQ(test::echo_problem(test_case.with(slots), options, plan), "")
      << config::text_of(options.planner) << ": " << text_of(test_case);
  return plan;
}

// The owner sends all rows of an expert; the placement of replicas does not depend on the sources.
Case of_experts(int ranks, const std::vector<int64_t>& rows) {
  Case result{{ranks, static_cast<int>(rows.size()), 0},
              std::vector<int64_t>(static_cast<size_t>(ranks) * rows.size())};
  for (size_t e = 0; e < rows.size(); ++e)
    result.rows[static_cast<size_t>(result.sizes.home(static_cast<int>(e))) * rows.size() + e] = rows[e];
  return result;
}

TEST(Echo, GreedyDropsWhatFindsNoSlot) {
  const Case test_case = of_experts(4, {250, 150, 100, 20, 160, 140, 120, 80});
  const EchoPlan one = checked(test_case, 1, with(EchoPlanner::greedy));
  EXPECT_EQ(one.owner, (std::vector<int32_t>{-1, 0, -1, 4}));
  EXPECT_EQ(one.rows, (std::vector<int64_t>{0, 135, 0, 45}));
  EXPECT_EQ(one.final_loads, (std::vector<int64_t>{265, 255, 255, 245}));
  const EchoPlan two = checked(test_case, 2, with(EchoPlanner::greedy));
  EXPECT_EQ(two.owner, (std::vector<int32_t>{-1, -1, 0, -1, -1, -1, 4, 0}));
  EXPECT_EQ(two.rows, (std::vector<int64_t>{0, 0, 135, 0, 0, 0, 45, 10}));
}

TEST(Echo, ReclaimTakesBackWhatTheHomeHasRoomFor) {
  const Case test_case = of_experts(4, {250, 150, 100, 20, 160, 140, 120, 80});
  EchoOptions options = with(EchoPlanner::greedy);
  options.reclaim = 0.1;
  EXPECT_EQ(checked(test_case, 2, options).final_loads, (std::vector<int64_t>{265, 255, 255, 245}));
  options.reclaim = 0.5;
  EXPECT_EQ(checked(test_case, 2, options).final_loads, (std::vector<int64_t>{265, 255, 300, 200}));
  // Exactly: 50 more than the mean of 100.
  options.reclaim = 0.5;
  for (const bool float32 : {false, true}) {
    options.float32 = float32;
    EXPECT_EQ(checked(of_experts(2, {75, 75, 25, 25}), 1, options).final_loads, (std::vector<int64_t>{150, 50}));
    EXPECT_EQ(checked(of_experts(2, {75, 77, 24, 24}), 1, options).final_loads, (std::vector<int64_t>{100, 100}));
  }
  options.float32 = false;
  // The first slot of a rank may be reclaimed while the second stays.
  options.reclaim = 0.3;
  const EchoPlan plan = checked(of_experts(4, {1, 1, 0, 60, 20, 1, 100, 0}), 2, options);
  EXPECT_EQ(plan.owner[4], -1);
  EXPECT_GE(plan.owner[5], 0);
}

TEST(Echo, BinpackTakesOneSlotAndAnyMean) {
  EXPECT_THROW(plan_echo(of_experts(2, {9, 0, 0, 0}).with(2), with(EchoPlanner::binpack)), base::Error);
  const EchoPlan plan = checked(of_experts(4, {16, 1, 1, 0}), 1, with(EchoPlanner::binpack));
  EXPECT_EQ(plan.final_loads, (std::vector<int64_t>{6, 4, 4, 4}));
}

TEST(Echo, CapfillSpreadsOneHotExpertAndOneHotRank) {
  std::vector<int64_t> one(64 * 4, 0);
  one[77] = 64 * 1000;
  const EchoPlan spread = checked(of_experts(64, one), 1, with(EchoPlanner::capfill));
  EXPECT_EQ(spread.max_load(), 1000);
  EXPECT_EQ(spread.num_replicas(), 63);
  std::vector<int64_t> rank(16 * 16, 100);
  std::fill_n(rank.begin() + 5 * 16, 16, 1000);
  const Case test_case = of_experts(16, rank);
  const EchoPlan spread_rank = checked(test_case, 1, with(EchoPlanner::capfill));
  EXPECT_EQ(spread_rank.max_load(), test_case.mean());
  EXPECT_EQ(spread_rank.num_replicas(), 15);
}

TEST(Echo, CapfillTakesFewerClonesWithinItsTolerance) {
  const Case test_case = of_experts(4, {1000, 1009, 1001, 990});
  EXPECT_EQ(checked(test_case, 1, with(EchoPlanner::capfill)).num_replicas(), 0);
  EchoOptions options = with(EchoPlanner::capfill);
  options.eps_bp = 0;
  EXPECT_EQ(checked(test_case, 1, options).final_loads, (std::vector<int64_t>{1000, 1000, 1001, 999}));
  EXPECT_EQ(checked(test_case, 2, options).max_load(), 1000);
}

// A donor that has given more rows than its surplus then receives rows.
TEST(Echo, ExactLetsADonorReceive) {
  const Case test_case = of_experts(3, {9, 6, 0});
  EXPECT_EQ(checked(test_case, 1, with(EchoPlanner::exact)).final_loads, (std::vector<int64_t>{5, 5, 5}));
  const Case chain = of_experts(3, {6, 5, 5, 4, 1, 0});  // 11, 9, 1
  const EchoPlan plan = checked(chain, 1, with(EchoPlanner::exact));
  EXPECT_EQ(plan.max_load(), 7);
  EXPECT_GT(checked(chain, 1, with(EchoPlanner::capfill)).max_load(), 7);
}

// One slot takes no more than the largest expert of another rank.
TEST(Echo, NoPlanIsBelowTheLowerBound) {
  const Case test_case = of_experts(2, {10, 10, 10, 10, 15, 0, 0, 0});
  EXPECT_EQ(echo_lower_bound(test_case.with(1)), 30);
  EXPECT_EQ(checked(test_case, 1, with(EchoPlanner::exact)).max_load(), 30);
  EXPECT_EQ(echo_lower_bound(test_case.with(2)), 28);
  EXPECT_EQ(checked(test_case, 2, with(EchoPlanner::exact)).max_load(), 28);
  EXPECT_EQ(echo_lower_bound(test_case.with(0)), 40);
}

TEST(Echo, NothingToDoIsAnEmptyPlan) {
  for (const EchoPlanner planner : kPlanners) {
    for (const Case& test_case :
         {of_experts(4, {5, 5, 5, 5}), of_experts(1, {5, 6, 7, 8}), of_experts(4, {0, 0, 0, 0})}) {
      const EchoPlan plan = checked(test_case, 1, with(planner));
      EXPECT_EQ(plan.num_replicas(), 0);
      EXPECT_EQ(plan.rows, std::vector<int64_t>(plan.rows.size(), 0));
      checked(test_case, 0, with(planner));
    }
  }
}

TEST(Echo, RowsOfTheClonesOwnRankStayThere) {
  // Expert 0 of rank 0; ranks 1 and 2 take 30 each of 90 rows, 25 of which are rank 1's and 50 rank 2's.
  const Case test_case{{3, 3, 1}, {15, 0, 0, 25, 0, 0, 50, 0, 0}};
  const EchoPlan plan = checked(test_case, 1, with(EchoPlanner::exact));
  EXPECT_EQ(plan.owner, (std::vector<int32_t>{-1, 0, 0}));
  EXPECT_EQ(plan.from(1, 1), 25);
  EXPECT_EQ(plan.from(2, 2), 30);
  // 5 more for rank 1, of 15 and 20 that are left: 2 1/7 and 2 6/7.
  EXPECT_EQ(plan.from(0, 1), 2);
  EXPECT_EQ(plan.from(2, 1), 3);
}

TEST(Echo, UpstreamsSplitRoundsDownAndTakesTheRestFromLowRanks) {
  const Case test_case{{3, 3, 1}, {30, 0, 0, 50, 0, 0, 20, 17, 49}};  // loads 100, 17, 49; mean 55
  EchoOptions options = with(EchoPlanner::greedy);
  options.split = EchoSplit::breadth_then_depth;
  const EchoPlan plan = checked(test_case, 1, options);
  EXPECT_EQ(plan.rows, (std::vector<int64_t>{0, 38, 6}));
  EXPECT_EQ(plan.source_rows, (std::vector<int64_t>{0, 12, 2, 0, 19, 3, 0, 7, 1}));
}

TEST(Echo, Float32RoundsOtherwise) {
  EXPECT_EQ(echo_breadth(15, 29, 29, true), 14);  // 14.999999
  EXPECT_EQ(echo_breadth(15, 29, 29, false), 15);
  EXPECT_EQ(echo_breadth(78, 132, 22, true), 12);
  EXPECT_EQ(echo_breadth(78, 132, 22, false), 13);
  EXPECT_EQ(echo_breadth((int64_t{1} << 31) - 1, int64_t{1} << 38, int64_t{1} << 37, false), (int64_t{1} << 30) - 1);
}

TEST(Echo, ClonesComeFromTheSameNodeWhereThatCostsNothing) {
  // Ranks 0 and 3 have equal surplus; ranks 1 and 2 equal capacity. Nodes of 2.
  const Case test_case = of_experts(4, {100, 0, 0, 100});
  for (const EchoPlanner planner : {EchoPlanner::capfill, EchoPlanner::exact}) {
    EXPECT_EQ(checked(test_case, 1, with(planner, 2)).owner, (std::vector<int32_t>{-1, 0, 3, -1}));
    EXPECT_EQ(checked(of_experts(4, {100, 0, 0, 100}), 1, with(planner)).max_load(), 50);
  }
  // Over random loads: the same largest load from exact, and more replicas on the owner's node.
  std::mt19937_64 draw(3);
  int near = 0, near_without = 0;
  for (int i = 0; i < 50; ++i) {
    const Case loads = echo_cases::zipf({32, 128, 0}, 0.8, 4096, draw);
    const auto count = [&](const EchoPlan& plan) {
      int same = 0;
      for (int k = 0; k < plan.sizes.replicas(); ++k) {
        const int32_t owner = plan.owner[static_cast<size_t>(k)];
        same += owner >= 0 && plan.sizes.home(owner) / 8 == plan.sizes.rank_of_replica(k) / 8;
      }
      return same;
    };
    near += count(checked(loads, 4, with(EchoPlanner::exact, 8)));
    near_without += count(checked(loads, 4, with(EchoPlanner::exact)));
  }
  EXPECT_GT(near, 2 * near_without);
}

// The sweeps rely on echo_problem.
TEST(Echo, AWrongPlanHasAProblem) {
  const Case test_case{{3, 3, 1}, {15, 0, 0, 25, 0, 0, 50, 0, 0}};
  const EchoOptions options = with(EchoPlanner::exact);
  const EchoPlan plan = checked(test_case, 1, options);
  const auto problem = [&](const auto& change) {
    EchoPlan wrong = plan;
    change(wrong);
    return test::echo_problem(test_case.with(1), options, wrong);
  };
  EXPECT_NE(problem([](EchoPlan& plan) { plan.owner[0] = 1; }), "");
  EXPECT_NE(problem([](EchoPlan& plan) { plan.owner[1] = 1; }), "");
  EXPECT_NE(problem([](EchoPlan& plan) { plan.owner[1] = -1; }), "");
  EXPECT_NE(problem([](EchoPlan& plan) { ++plan.rows[1]; }), "");
  EXPECT_NE(problem([](EchoPlan& plan) { --plan.source_rows[1], ++plan.source_rows[4]; }), "") << "rank 1 has 25";
  EXPECT_NE(problem([](EchoPlan& plan) {
              ++plan.rows[1], ++plan.source_rows[1], --plan.final_loads[0], ++plan.final_loads[1];
            }),
            "");
  EXPECT_NE(problem([](EchoPlan& plan) { ++plan.final_loads[1], --plan.final_loads[0]; }), "");
  EXPECT_NE(problem([](EchoPlan& plan) { plan.final_loads.pop_back(); }), "");
}

}  // namespace
}  // namespace metroplex::plan::echo_test
