// Replica planners on many counts: invariants of each plan, equality on every rank, and quality.
#include <gtest/gtest.h>

#include "plan/echo_cases.h"
#include "plan/played_lanes.h"
#include "plan/echo_naive.h"
#include "support/echo_check.h"
#include "support/echo_reroute.h"
#include "support/everyday.h"

namespace metroplex::plan::echo_walk_test {
namespace {

using config::EchoPlanner;
using echo_cases::Case;

EchoOptions with(EchoPlanner planner) {
  EchoOptions options;
  options.planner = planner;
  return options;
}

std::vector<EchoOptions> all_options(const EchoSizes& sizes, uint64_t number) {
  std::vector<EchoOptions> result{with(EchoPlanner::greedy), with(EchoPlanner::capfill), with(EchoPlanner::exact)};
  if (sizes.slots == 1) result.push_back(with(EchoPlanner::binpack));
  if (number % 4 == 1) result[0].reclaim = 0.1 * static_cast<double>(number % 7);
  if (number % 2 == 1) result[0].split = EchoSplit::breadth_then_depth;
  if (number % 3 == 1) result[1].eps_bp = 0;
  for (EchoOptions& options : result) options.ranks_per_node = number % 5 == 1 ? 2 : 0;
  return result;
}

// Random plans are arbitrary valid plans: no local expert, no expert twice on a rank. Other counts or another seed
// give other plans.
TEST(EchoWalk, PlansAtRandomAreValidAndDrawnFromTheCounts) {
  std::mt19937_64 draw(13);
  EchoOptions options;
  options.random = true;
  int same_by_counts = 0, same_by_seed = 0, cases = 0, replicas = 0;
  for (int i = 0; i < 2000 && !testing::Test::HasFailure(); ++i) {
    Case test_case = echo_cases::random_case(echo_cases::random_sizes(draw), i % echo_cases::kKinds, draw);
    options.seed = draw() % 8;
    const EchoPlan plan = plan_echo(test_case.counts(), options);
    EXPECT_EQ(test::echo_problem(test_case.counts(), options, plan), "") << text_of(test_case);
    replicas += plan.num_replicas();
    if (plan.num_replicas() < 3) continue;
    ++cases;
    EchoOptions other = options;
    ++other.seed;
    same_by_seed += plan_echo(test_case.counts(), other).owner == plan.owner;
    ++test_case.rows[draw() % test_case.rows.size()];
    same_by_counts += plan_echo(test_case.counts(), options).owner == plan.owner;
  }
  EXPECT_GT(replicas, 2000);
  EXPECT_GT(cases, 500);
  EXPECT_LT(same_by_counts, cases / 10);
  EXPECT_LT(same_by_seed, cases / 10);
}

// One workspace and one plan for all cases, as in a run: no state may leak into the next plan.
TEST(EchoWalk, InvariantsHoldOfAllPlansAndEveryRankMakesTheSame) {
  const int cases = test::runs_full_sweep() ? 100'000 : 20'000;
  std::mt19937_64 draw(11);
  EchoWorkspace workspace;
  EchoPlan plan;
  int exact = 0, fewer = 0;
  for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const Case test_case = echo_cases::random_case(echo_cases::random_sizes(draw), i % echo_cases::kKinds, draw);
    for (const EchoOptions& options : all_options(test_case.sizes, draw() % 60)) {
      plan_echo(test_case.counts(), options, workspace, plan);
      EXPECT_EQ(test::echo_problem(test_case.counts(), options, plan), "")
          << config::text_of(options.planner) << " of kind " << i % echo_cases::kKinds << ": " << text_of(test_case);
      EXPECT_TRUE(plan == plan_echo(test_case.counts(), options)) << text_of(test_case);
      if (options.planner != EchoPlanner::exact) continue;
      const bool enough = test_case.sizes.slots >= test_case.sizes.home_experts();
      EXPECT_GE(plan.max_load(), echo_lower_bound(test_case.counts())) << text_of(test_case);
      exact += enough;
      fewer += !enough;
      if (enough) EXPECT_EQ(plan.max_load(), test_case.mean()) << text_of(test_case);
      else
        EXPECT_LE(plan.max_load(), plan_echo(test_case.counts(), with(EchoPlanner::capfill)).max_load())
            << text_of(test_case);
    }
  }
  EXPECT_GT(exact, cases / 3);
  EXPECT_GT(fewer, cases / 10);
}

TEST(EchoWalk, PlainerPlannersGiveTheSame) {
  std::mt19937_64 draw(12);
  int exact_cases = 0;
  for (int i = 0; i < (test::runs_full_sweep() ? 10'000 : 1'000) && !testing::Test::HasFailure(); ++i) {
    EchoSizes sizes = echo_cases::random_sizes(draw);
    if (sizes.ranks > 24) sizes = {sizes.ranks % 24 + 1, (sizes.ranks % 24 + 1) * sizes.home_experts(), sizes.slots};
    const Case test_case = echo_cases::random_case(sizes, i % echo_cases::kKinds, draw);
    const auto compare = [&](const EchoOptions& options, const echo_naive::Owners& expected) {
      const EchoPlan plan = plan_echo(test_case.counts(), options);
      EXPECT_EQ(plan.owner, expected.owner) << config::text_of(options.planner) << ": " << text_of(test_case);
      EXPECT_EQ(plan.rows, expected.rows) << config::text_of(options.planner) << ": " << text_of(test_case);
      EXPECT_EQ(plan.source_rows, echo_naive::local_first(test_case.counts(), expected)) << text_of(test_case);
    };
    compare(with(EchoPlanner::greedy), echo_naive::greedy(test_case.counts()));
    if (sizes.slots == 1) compare(with(EchoPlanner::binpack), echo_naive::binpack(test_case.counts()));
    EchoOptions options = with(EchoPlanner::capfill);
    options.eps_bp = i % 2 * 100;
    compare(options, echo_naive::capfill(test_case.counts(), options.eps_bp));
    const auto exact = echo_naive::exact(test_case.counts());
    if (exact) compare(with(EchoPlanner::exact), *exact);
    exact_cases += exact.has_value();
  }
  EXPECT_GT(exact_cases, 500);
}

TEST(EchoWalk, LanesOfAWarpMakeTheSamePlans) {
  std::mt19937_64 draw(17);
  const int cases = test::runs_full_sweep() ? 100'000 : 3'000;
  for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const Case test_case = echo_cases::random_case(echo_cases::random_sizes(draw), i % echo_cases::kKinds, draw);
    for (EchoOptions options : {with(EchoPlanner::capfill), with(EchoPlanner::exact)}) {
      options.ranks_per_node = i % 3 == 1 ? 2 : 0;
      options.eps_bp = i % 5 == 1 ? 0 : 100;
      EXPECT_EQ(echo_lanes::plan_in_lanes(test_case.counts(), options, draw()),
                plan_echo(test_case.counts(), options))
          << config::text_of(options.planner) << ": " << text_of(test_case);
    }
  }
}

// One rank's tokens in their order in a run: each choice gets a destination slot of its expert, each replica its
// rows.
TEST(EchoWalk, ReroutedRowsArriveAsPlanned) {
  std::mt19937_64 draw(13);
  EchoRerouteWorkspace workspace;
  for (int i = 0; i < 600 && !testing::Test::HasFailure(); ++i) {
    const EchoSizes sizes = [&] {
      EchoSizes drawn = echo_cases::random_sizes(draw);
      drawn.ranks = drawn.ranks % 6 + 2;
      drawn.experts = drawn.ranks * (1 + static_cast<int>(draw() % 4));
      return drawn;
    }();
    const int topk = 1 + static_cast<int>(draw() % static_cast<uint64_t>(std::min(4, sizes.experts)));
    const int tokens = static_cast<int>(draw() % 40);
    Case test_case{sizes, std::vector<int64_t>(static_cast<size_t>(sizes.ranks * sizes.experts))};
    std::vector<std::vector<int32_t>> chosen(static_cast<size_t>(sizes.ranks));
    for (int rank = 0; rank < sizes.ranks; ++rank) {
      for (int token = 0; token < tokens; ++token) {
        std::vector<int> order = echo_naive::indices(sizes.experts);
        for (int j = 0; j < topk; ++j) {
          const int rest = sizes.experts - j, skewed = static_cast<int>(draw() % static_cast<uint64_t>(rest));
          std::swap(order[static_cast<size_t>(j)], order[static_cast<size_t>(j + skewed * skewed / rest)]);
          const bool dropped = draw() % 16 == 0;
          chosen[static_cast<size_t>(rank)].push_back(dropped ? -1 : order[static_cast<size_t>(j)]);
          if (!dropped) ++test_case.rows[static_cast<size_t>(rank * sizes.experts + order[static_cast<size_t>(j)])];
        }
      }
    }
    const EchoPlan plan = plan_echo(test_case.counts(), with(i % 2 ? EchoPlanner::capfill : EchoPlanner::exact));
    const std::vector<int32_t> expert_of = echo_column_experts(plan);
    std::vector<int64_t> arrived(static_cast<size_t>(sizes.columns()));
    for (int rank = 0; rank < sizes.ranks; ++rank) {
      const std::vector<int32_t>& experts = chosen[static_cast<size_t>(rank)];
      std::vector<int32_t> columns(experts.size());
      echo_reroute(plan, rank, experts, workspace, columns);
      std::vector<int64_t> here(arrived.size());
      // Tokens of an expert go to its replicas in order; the rest stay with the owner.
      std::vector<int> last(static_cast<size_t>(sizes.experts), -1);
      for (size_t j = 0; j < experts.size(); ++j) {
        if (experts[j] < 0) {
          EXPECT_EQ(columns[j], -1);
          continue;
        }
        ASSERT_EQ(expert_of[static_cast<size_t>(columns[j])], experts[j]);
        ++here[static_cast<size_t>(columns[j])];
        const bool home = columns[j] == sizes.column_of_expert(experts[j]);
        const int place = home ? sizes.columns() : columns[j];
        EXPECT_LE(last[static_cast<size_t>(experts[j])], place);
        last[static_cast<size_t>(experts[j])] = place;
      }
      for (int replica = 0; replica < sizes.replicas(); ++replica)
        EXPECT_EQ(here[static_cast<size_t>(sizes.column_of_replica(replica))], plan.from(rank, replica));
      std::vector<int64_t> folded(static_cast<size_t>(sizes.experts));
      echo_fold(plan, std::span<const int64_t>(here), std::span(folded));
      for (int e = 0; e < sizes.experts; ++e)
        EXPECT_EQ(folded[static_cast<size_t>(e)], test_case.counts().at(rank, e));
      for (size_t j = 0; j < here.size(); ++j) arrived[j] += here[j];
    }
    for (int rank = 0; rank < sizes.ranks; ++rank) {
      const auto first = arrived.begin() + rank * (sizes.home_experts() + sizes.slots);
      EXPECT_EQ(std::accumulate(first, first + sizes.home_experts() + sizes.slots, int64_t{0}),
                plan.final_loads[static_cast<size_t>(rank)]);
    }
  }
}

// The smallest maximum load for given owners: no set of ranks may have more rows that only it can take than its
// share.
int64_t least_load(const Case& test_case, const std::vector<int>& owners, int slots) {
  const echo_naive::Sums sums(test_case.counts());
  std::vector<unsigned> ranks_of(static_cast<size_t>(test_case.sizes.experts));
  for (int e = 0; e < test_case.sizes.experts; ++e) ranks_of[static_cast<size_t>(e)] = 1u << test_case.sizes.home(e);
  for (size_t k = 0; k < owners.size(); ++k)
    ranks_of[static_cast<size_t>(owners[k])] |= 1u << (static_cast<int>(k) / slots);
  int64_t least = 0;
  for (unsigned set = 1; set < 1u << test_case.sizes.ranks; ++set) {
    int64_t bound = 0;
    for (size_t e = 0; e < ranks_of.size(); ++e) bound += (ranks_of[e] & ~set) == 0 ? sums.expert[e] : 0;
    const int size = __builtin_popcount(set);
    least = std::max(least, (bound + size - 1) / size);
  }
  return least;
}

// Over every assignment of the slots; a replica on its owner's rank has no effect.
int64_t optimum(const Case& test_case, int slots) {
  std::vector<int> owners(static_cast<size_t>(test_case.sizes.ranks * slots), 0);
  int64_t best = least_load(test_case, owners, slots);
  while (true) {
    size_t k = 0;
    while (k < owners.size() && ++owners[k] == test_case.sizes.experts) owners[k++] = 0;
    if (k == owners.size()) return best;
    best = std::min(best, least_load(test_case, owners, slots));
  }
}

TEST(EchoWalk, NoPlanBeatsAnExhaustiveSearch) {
  std::mt19937_64 draw(14);
  std::vector<double> capfill_gaps, exact_gaps;
  constexpr EchoSizes kSizes[] = {{3, 6, 1}, {2, 4, 1}, {2, 6, 2}, {4, 4, 1},
                                  {3, 3, 1}, {2, 8, 1}, {4, 8, 1}, {3, 9, 1}};
  for (int i = 0; i < (test::runs_full_sweep() ? 2'000 : 240); ++i) {
    const EchoSizes sizes = kSizes[static_cast<size_t>(i) % std::size(kSizes)];
    const int kind = static_cast<int>(draw() % echo_cases::kKinds);
    const Case test_case = echo_cases::random_case(sizes, kind, draw);
    const int64_t least = optimum(test_case, sizes.slots);
    EXPECT_LE(echo_lower_bound(test_case.counts()), least) << text_of(test_case);
    if (sizes.slots >= sizes.home_experts()) { EXPECT_EQ(least, test_case.mean()) << text_of(test_case); }
    for (const EchoOptions& options : all_options(sizes, draw() % 60)) {
      const int64_t most = plan_echo(test_case.counts(), options).max_load();
      EXPECT_GE(most, least) << config::text_of(options.planner) << ": " << text_of(test_case);
      if (least == 0 || sizes.slots >= sizes.home_experts()) continue;
      const double gap = static_cast<double>(most) / static_cast<double>(least);
      if (options.planner == EchoPlanner::capfill) capfill_gaps.push_back(gap);
      if (options.planner == EchoPlanner::exact) exact_gaps.push_back(gap);
    }
  }
  const auto mean = [](const std::vector<double>& gaps) {
    return std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size());
  };
  RecordProperty("capfill_over_optimum", std::to_string(mean(capfill_gaps)));
  RecordProperty("exact_over_optimum", std::to_string(mean(exact_gaps)));
  EXPECT_LT(mean(exact_gaps), mean(capfill_gaps));
  EXPECT_LT(mean(exact_gaps), 1.05);
}

// If all loads and experts differ, the numbering of the ranks does not matter.
TEST(EchoWalk, RanksByOtherNumbersEndWithTheSameLoads) {
  std::mt19937_64 draw(15);
  for (int i = 0; i < 100; ++i) {
    const EchoSizes sizes{8, 24, 1 + i % 3};
    Case test_case{sizes, std::vector<int64_t>(8 * 24)};
    for (int64_t& rows : test_case.rows) rows = static_cast<int64_t>(draw() % 1'000'003);
    Case other = test_case;
    for (int r = 0; r < 8; ++r) {
      for (int e = 0; e < 24; ++e)
        other.rows[static_cast<size_t>((7 - r) * 24 + (7 - e / 3) * 3 + e % 3)] = test_case.counts().at(r, e);
    }
    for (const EchoPlanner planner : {EchoPlanner::greedy, EchoPlanner::capfill, EchoPlanner::exact}) {
      auto loads = plan_echo(test_case.counts(), with(planner)).final_loads;
      auto others = plan_echo(other.counts(), with(planner)).final_loads;
      std::sort(loads.begin(), loads.end());
      std::sort(others.begin(), others.end());
      EXPECT_EQ(loads, others) << config::text_of(planner);
    }
  }
}

// 64 ranks x 256 experts, loads resampled in each step as for a moving hot set.
TEST(EchoWalk, TwoSlotsAreEnoughForOnePercent) {
  std::mt19937_64 draw(16);
  for (const double exponent : {0.3, 0.6, 0.9, 1.2, 1.5}) {
    for (int step = 0; step < 4; ++step) {
      const Case test_case = echo_cases::zipf({64, 256, 2}, exponent, 65536, draw);
      const EchoPlan capfill = plan_echo(test_case.counts(), with(EchoPlanner::capfill));
      EXPECT_LE(capfill.max_load() * 100, test_case.mean() * 101) << "exponent " << exponent;
      EXPECT_LE(capfill.num_replicas(), plan_echo(test_case.counts(), with(EchoPlanner::greedy)).num_replicas());
      EXPECT_EQ(plan_echo(test_case.counts(), with(EchoPlanner::exact)).max_load(), test_case.mean())
          << "exponent " << exponent;
    }
  }
}

}  // namespace
}  // namespace metroplex::plan::echo_walk_test
