// Schedules with weight actions: every size is a valid table within its memory bound and has the bubble of its paper.
// The pass that adds transfers makes a valid table of any order of compute actions.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "plan/greedy.h"
#include "plan/schedules/registry.h"
#include "plan/table_writer.h"
#include "plan/transfers.h"
#include "base/error.h"
#include "plan/verify.h"
#include "support/everyday.h"

namespace metroplex::plan::zero_bubble_test {
namespace {

constexpr const char* kNames[] = {"zb_h1", "zb_h2", "zb_v", "dualpipe_v"};

bool is_v(const std::string& name) { return name == "zb_v" || name == "dualpipe_v"; }
ScheduleRequest make_request(const std::string& name, int stages, int microbatches) {
  return {stages, is_v(name) ? 2 : 1, microbatches};
}

// The schedules' upper bounds, in forwards of one chunk.
int live_bound(const std::string& name, int stages) {
  if (name == "zb_h1") return stages;
  if (name == "zb_h2") return 2 * stages - 1;
  return name == "zb_v" ? 2 * stages : 2 * stages + 1;
}

// Times of one microbatch on one rank: 1 each for forward, backward and weight.
ActionTimes unit_times(const PipelineTable& table) {
  const double time = 1.0 / table.num_chunks;
  return {time, time, time};
}

TEST(ZeroBubble, EverySizeIsValidAndWithinMemory) {
  for (const std::string name : kNames) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int microbatches = 1; microbatches <= 20; ++microbatches) {
        const PipelineTable table = build_schedule(name, make_request(name, stages, microbatches));
        const VerifyReport report = verify(table);
        EXPECT_TRUE(table.splits_backward());
        for (const int live : report.peak_live_activations) {
          if (name == "zb_h1") { EXPECT_EQ(live, std::min(stages, microbatches)); }
          EXPECT_LE(live, std::min(live_bound(name, stages), microbatches * table.num_chunks))
              << name << " p " << stages << " m " << microbatches;
        }
      }
    }
  }
}

// Qi et al. 2024, table 1, with T_F = T_B = T_W = 1: the bubble of ZB-H1 is (p - 1)(T_F + T_B - T_W), a third of
// 1F1B's. ZB-V waits only for the first half forward to reach the last rank.
TEST(ZeroBubble, LengthsAreThoseOfThePapers) {
  for (const int stages : {2, 4, 8, 16}) {
    for (const int microbatches : {2 * stages, 4 * stages}) {
      const auto length = [&](const std::string& name) {
        const PipelineTable table = build_schedule(name, make_request(name, stages, microbatches));
        return step_length(table, unit_times(table));
      };
      EXPECT_DOUBLE_EQ(length("zb_h1"), 3 * microbatches + stages - 1);
      EXPECT_DOUBLE_EQ(length("zb_v"), 3 * microbatches + (stages - 1) / 2.0);
      EXPECT_DOUBLE_EQ(length("dualpipe_v"), 3 * microbatches + (stages - 1) / 2.0);
    }
  }
}

TEST(ZeroBubble, H2HasNoGapsWithinARank) {
  const PipelineTable table = build_schedule("zb_h2", {8, 1, 24});
  for (const auto& computes : simulate(table, {}))
    EXPECT_DOUBLE_EQ(computes.back().end - computes.front().start, 3 * 24);
}

// Returns `shape` with a random order of its compute actions: repeatedly a ready action of a random rank.
PipelineTable random_order(PipelineTable shape, std::mt19937& random) {
  const StagePlacement placement = shape.placement();
  std::set<std::tuple<ActionKind, int, int>> done;  // kind, stage, microbatch
  std::vector<std::pair<int, Action>> left;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    for (int m = 0; m < shape.num_microbatches; ++m) {
      const StagePlace place = placement.place_of(stage);
      for (const ActionKind kind : {ActionKind::forward, ActionKind::backward, ActionKind::weight})
        left.push_back({place.rank, {kind, m, place.chunk, -1, -1}});
    }
  }
  std::shuffle(left.begin(), left.end(), random);
  while (!left.empty()) {
    const auto ready = std::find_if(left.begin(), left.end(), [&](const auto& entry) {
      const auto& [rank, action] = entry;
      const int stage = placement.stage_of({rank, action.chunk}), m = action.microbatch;
      if (action.kind == ActionKind::weight) return done.contains({ActionKind::backward, stage, m});
      const bool forward = action.kind == ActionKind::forward;
      const int other = stage + (forward ? -1 : 1);
      if (!forward && !done.contains({ActionKind::forward, stage, m})) return false;
      return other < 0 || other >= placement.stages() || done.contains({action.kind, other, m});
    });
    const auto [rank, action] = *ready;
    shape.ranks[static_cast<size_t>(rank)].push_back(action);
    done.insert({action.kind, placement.stage_of({rank, action.chunk}), action.microbatch});
    left.erase(ready);
  }
  return shape;
}

TEST(Transfers, MakeAnyOrderAValidTable) {
  std::mt19937 random(46);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int tables = test::runs_full_sweep() ? 100000 : 2000;
  for (int i = 0; i < tables; ++i) {
    const int stages = number(1, 8), chunks = number(1, 3);
    PipelineTable shape = make_table({stages, chunks, number(1, 1 + 60 / (stages * chunks))}, "random");
    shape.v_shaped = number(0, 1) == 1;
    ActionTimes times{0.1 * number(1, 30), 0.1 * number(1, 30), 0.1 * number(1, 30), 0.1 * number(0, 20)};
    for (int stage = 0; stage < stages * chunks; ++stage) times.scale.push_back(0.5 + 0.1 * number(0, 10));
    const PipelineTable table = add_transfers(random_order(shape, random), times);
    const VerifyReport report = inspect_table(table);
    ASSERT_TRUE(report.ok()) << "table " << i << ": " << report.faults.front();
  }
}

// Every fault must be found, and a fault of one action must be reported with its kind.
TEST(Verify, FindsPlantedFaultsInZeroBubbleTables) {
  int planted = 0;
  const auto expect_fault = [&](const PipelineTable& table, const std::string& words, const char* what) {
    const VerifyReport report = inspect_table(table);
    const bool named = std::any_of(report.faults.begin(), report.faults.end(),
                                   [&](const std::string& fault) { return fault.find(words) != std::string::npos; });
    EXPECT_TRUE(named) << what << " in " << table.name << ": " << (report.ok() ? "no fault" : report.faults.front());
    ++planted;
  };
  for (const std::string name : kNames) {
    const PipelineTable good = build_schedule(name, make_request(name, 4, 8));
    const auto find = [&](size_t rank, ActionKind kind, int skip) {
      const auto& actions = good.ranks[rank];
      for (size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind == kind && skip-- == 0) return i;
      }
      return actions.size();
    };
    for (const size_t rank : {size_t{1}, size_t{2}}) {
      for (const ActionKind kind : {ActionKind::recv_forward, ActionKind::recv_backward, ActionKind::send_forward,
                                    ActionKind::send_backward, ActionKind::weight, ActionKind::free}) {
        const size_t i = find(rank, kind, 3);
        ASSERT_LT(i, good.ranks[rank].size());
        PipelineTable dropped = good, twice = good;
        dropped.ranks[rank].erase(dropped.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
        expect_fault(dropped, std::string(action_name(kind)) + " of microbatch", "dropped");
        twice.ranks[rank].insert(twice.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i), good.ranks[rank][i]);
        expect_fault(twice, "appears twice", "twice");
      }
      PipelineTable early = good;  // weight before its backward
      const size_t weight = find(rank, ActionKind::weight, 2);
      const Action action = good.ranks[rank][weight];
      early.ranks[rank].erase(early.ranks[rank].begin() + static_cast<std::ptrdiff_t>(weight));
      early.ranks[rank].insert(early.ranks[rank].begin(), action);
      expect_fault(early, "its backward has not run", "early weight");
      PipelineTable peer = good;
      peer.ranks[rank][find(rank, ActionKind::send_forward, 1)].peer = static_cast<int>(rank);
      expect_fault(peer, "names peer", "wrong peer");
      PipelineTable cycle = good;  // the first receive comes last
      auto& actions = cycle.ranks[rank];
      std::rotate(actions.begin(), actions.begin() + 1, actions.end());
      expect_fault(cycle, "has not", "cycle");
    }
  }
  EXPECT_GE(planted, 50);
}

TEST(Transfers, AnOrderThatCannotRunIsRefused) {
  PipelineTable table = make_table({2, 1, 1}, "crossed");
  table.ranks[0] = {{ActionKind::forward, 0, 0}, {ActionKind::backward, 0, 0}, {ActionKind::weight, 0, 0}};
  table.ranks[1] = {{ActionKind::backward, 0, 0}, {ActionKind::forward, 0, 0}, {ActionKind::weight, 0, 0}};
  EXPECT_THROW(add_transfers(table, {}), base::Error);
}

TEST(Greedy, KeepsLimitsForAnyTimes) {
  std::mt19937 random(47);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 500; ++i) {
    const int stages = number(1, 6), microbatches = number(1, 12);
    const PipelineTable shape = make_table({stages, 1, microbatches}, "greedy");
    ActionTimes times{0.1 * number(1, 30), 0.1 * number(1, 30), 0.1 * number(1, 30), 0.1 * number(0, 20)};
    for (int stage = 0; stage < stages; ++stage) times.scale.push_back(0.5 + 0.1 * number(0, 10));
    GreedyRules rules;
    for (int rank = 0; rank < stages; ++rank) rules.live_limits.push_back(number(1, stages + 2));
    const std::optional<PipelineTable> order = shortest_greedy_order(shape, times, rules);
    ASSERT_TRUE(order.has_value());
    const VerifyReport report = verify(add_transfers(*order, times));
    for (size_t rank = 0; rank < rules.live_limits.size(); ++rank)
      EXPECT_LE(report.peak_live_activations[rank], rules.live_limits[rank]);
  }
}

}  // namespace
}  // namespace metroplex::plan::zero_bubble_test
