// verify() must find planted faults: each test breaks a correct table in one way and names the words that the report
// must contain.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"

namespace metroplex::plan::verify_test {
namespace {

PipelineTable right_table() { return build_schedule("interleaved", {3, 2, 6}); }

size_t find(const PipelineTable& table, size_t rank, ActionKind kind, int n = 0) {
  const auto& actions = table.ranks[rank];
  for (size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == kind && n-- == 0) return i;
  }
  ADD_FAILURE() << "no such action";
  return 0;
}

void erase(PipelineTable& table, size_t rank, size_t index) {
  table.ranks[rank].erase(table.ranks[rank].begin() + static_cast<long>(index));
}

void move_to(PipelineTable& table, size_t rank, size_t from, size_t to) {
  auto& actions = table.ranks[rank];
  const Action action = actions[from];
  erase(table, rank, from);
  actions.insert(actions.begin() + static_cast<long>(to), action);
}

void expect_fault(const PipelineTable& table, const std::string& words) {
  const auto report = inspect_table(table);
  const bool found = std::any_of(report.faults.begin(), report.faults.end(),
                                 [&](const std::string& fault) { return fault.find(words) != std::string::npos; });
  std::string all;
  for (const auto& fault : report.faults) all += "\n  " + fault;
  EXPECT_TRUE(found) << "no fault contains '" << words << "':" << all;
  EXPECT_THROW(verify(table), base::Error);
}

TEST(Verify, FindsAMissingForward) {
  auto table = right_table();
  erase(table, 1, find(table, 1, ActionKind::forward, 4));
  expect_fault(table, "rank 1: forward of microbatch");
}

TEST(Verify, FindsAMissingBackward) {
  auto table = right_table();
  erase(table, 2, find(table, 2, ActionKind::backward, 5));
  expect_fault(table, "rank 2: backward of microbatch");
}

TEST(Verify, FindsAForwardThatRunsTwice) {
  auto table = right_table();
  const size_t i = find(table, 0, ActionKind::forward);
  table.ranks[0].insert(table.ranks[0].begin() + static_cast<long>(i), table.ranks[0][i]);
  expect_fault(table, "appears twice");
}

TEST(Verify, FindsABackwardBeforeItsForward) {
  auto table = build_schedule("none", {1, 1, 2});
  std::swap(table.ranks[0][0], table.ranks[0][1]);
  expect_fault(table, "its forward has not run");
}

TEST(Verify, FindsChunksOfOneRankInTheWrongOrder) {
  auto table = build_schedule("none", {1, 2, 1});
  std::swap(table.ranks[0][0], table.ranks[0][1]);
  expect_fault(table, "the chunk before has not run forward");
  table = build_schedule("none", {1, 2, 1});
  std::swap(table.ranks[0][2], table.ranks[0][3]);
  expect_fault(table, "the chunk after has not run backward");
}

TEST(Verify, FindsAnInputUsedBeforeItIsReceived) {
  auto table = right_table();
  move_to(table, 1, find(table, 1, ActionKind::recv_forward), find(table, 1, ActionKind::forward));
  expect_fault(table, "its input has not been received");
}

TEST(Verify, FindsAGradientUsedBeforeItIsReceived) {
  auto table = build_schedule("1f1b", {2, 1, 2});
  move_to(table, 0, find(table, 0, ActionKind::recv_backward), find(table, 0, ActionKind::backward));
  expect_fault(table, "its gradient has not been received");
}

TEST(Verify, FindsAnOutputSentBeforeItIsMade) {
  auto table = build_schedule("1f1b", {2, 1, 2});
  move_to(table, 0, find(table, 0, ActionKind::send_forward), find(table, 0, ActionKind::forward));
  expect_fault(table, "its forward has not run");
}

TEST(Verify, FindsAGradientSentBeforeItIsMade) {
  auto table = build_schedule("1f1b", {2, 1, 2});
  move_to(table, 1, find(table, 1, ActionKind::send_backward), find(table, 1, ActionKind::backward));
  expect_fault(table, "its backward has not run");
}

TEST(Verify, FindsAMissingSendAndItsReceiverThatWaitsForEver) {
  auto table = right_table();
  erase(table, 0, find(table, 0, ActionKind::send_forward, 2));
  expect_fault(table, "send_forward of microbatch");
  expect_fault(table, "deadlock");
}

TEST(Verify, FindsAMissingReceive) {
  auto table = right_table();
  erase(table, 1, find(table, 1, ActionKind::recv_backward, 1));
  expect_fault(table, "recv_backward of microbatch");
  expect_fault(table, "they first differ at number");
}

TEST(Verify, FindsAnOutputFreedBeforeItIsSent) {
  auto table = build_schedule("1f1b", {2, 1, 2});
  move_to(table, 0, find(table, 0, ActionKind::free), find(table, 0, ActionKind::send_forward));
  expect_fault(table, "its output has not been sent");
  expect_fault(table, "its output has been freed");
}

TEST(Verify, FindsAnOutputThatIsNeverFreed) {
  auto table = right_table();
  erase(table, 1, find(table, 1, ActionKind::free, 3));
  expect_fault(table, "free of microbatch");
}

TEST(Verify, FindsSendsInAnotherOrderThanTheirReceives) {
  auto table = build_schedule("gpipe", {2, 1, 3});
  std::swap(table.ranks[0][find(table, 0, ActionKind::send_forward, 0)].microbatch,
            table.ranks[0][find(table, 0, ActionKind::send_forward, 1)].microbatch);
  expect_fault(table, "they first differ at number 0");
}

TEST(Verify, FindsTwoRanksThatBothSendFirst) {
  // Without batches both sides of the steady state block in their own send.
  auto table = build_schedule("1f1b", {2, 1, 4});
  for (auto& actions : table.ranks) {
    for (Action& action : actions) action.batch = -1;
  }
  expect_fault(table, "deadlock with rendezvous sends");
}

TEST(Verify, FindsAReceiveFromTheWrongRank) {
  auto table = right_table();
  table.ranks[1][find(table, 1, ActionKind::recv_forward)].peer = 2;
  expect_fault(table, "names peer 2, which should be 0");
}

TEST(Verify, FindsASendAtTheEndOfTheModel) {
  auto table = build_schedule("1f1b", {2, 1, 2});
  table.ranks[1].push_back({ActionKind::send_forward, 0, 0, 0, -1});
  expect_fault(table, "no other rank is after this stage");
}

TEST(Verify, FindsABatchTornApart) {
  auto table = build_schedule("1f1b", {3, 1, 6});
  const size_t i = find(table, 0, ActionKind::recv_backward);
  move_to(table, 0, i, i + 2);  // after the free that follows its batch
  expect_fault(table, "interrupted");
}

TEST(Verify, FindsMoreActivationsThanPromised) {
  auto table = build_schedule("gpipe", {2, 1, 5});
  table.live_activation_bounds = {2, 1};
  expect_fault(table, "rank 0 holds 5 activations at its peak, the schedule's bound is 2");
}

// A bound that is too high reserves memory that no schedule needs.
TEST(Verify, FindsFewerActivationsThanPromised) {
  auto table = build_schedule("gpipe", {2, 1, 5});
  table.live_activation_bounds = {6, 5};
  expect_fault(table, "rank 0 holds 5 activations at its peak, the schedule's bound is 6");
}

TEST(Verify, FindsABackwardInAForwardOnlyTable) {
  auto table = build_schedule("none", {1, 1, 1, 0, true});
  table.ranks[0].push_back({ActionKind::backward, 0, 0, -1, -1});
  expect_fault(table, "a forward-only table has no backward");
}

TEST(Verify, FindsAWeightGradientBeforeItsBackwardAndOneThatIsMissing) {
  auto table = build_schedule("none", {1, 1, 2});
  table.ranks[0].insert(table.ranks[0].begin() + 1, {ActionKind::weight, 0, 0, -1, -1});
  expect_fault(table, "its backward has not run");
  expect_fault(table, "weight of microbatch 1");
}

TEST(Verify, TakesNoNumberOnTrust) {
  auto table = right_table();
  table.ranks[0][0].microbatch = 6;
  expect_fault(table, "no such microbatch or chunk");
  table = right_table();
  table.ranks[2][0].chunk = -1;
  expect_fault(table, "no such microbatch or chunk");
  table = right_table();
  table.ranks.pop_back();
  expect_fault(table, "2 lists of actions for 3 ranks");
  table = right_table();
  table.num_chunks = 0;
  expect_fault(table, "must be positive");
  table = right_table();
  table.ranks[0][0].kind = static_cast<ActionKind>(42);
  expect_fault(table, "unknown kind 42");
}

TEST(Verify, ReportsEveryFaultAndNotOnlyTheFirst) {
  auto table = build_schedule("gpipe", {2, 1, 4});
  table.ranks[0].clear();
  EXPECT_GE(inspect_table(table).faults.size(), 4u * 4u);
}

TEST(Verify, FindsTheLossOfAnySingleAction) {
  for (const auto& right :
       {right_table(), build_schedule("1f1b", {3, 1, 4}), build_schedule("gpipe", {2, 1, 2, 0, true})}) {
    for (size_t rank = 0; rank < right.ranks.size(); ++rank) {
      for (size_t i = 0; i < right.ranks[rank].size(); ++i) {
        auto table = right;
        erase(table, rank, i);
        EXPECT_FALSE(inspect_table(table).ok()) << "rank " << rank << " action " << i;
      }
    }
  }
}

TEST(Verify, FindsAnyComputeActionGivenToAnotherMicrobatchChunkOrKind) {
  const auto right = right_table();
  for (size_t rank = 0; rank < right.ranks.size(); ++rank) {
    for (size_t i = 0; i < right.ranks[rank].size(); ++i) {
      for (int change = 0; change < 4; ++change) {
        auto table = right;
        Action& action = table.ranks[rank][i];
        if (change == 0) action.microbatch = (action.microbatch + 1) % table.num_microbatches;
        if (change == 1) action.chunk = 1 - action.chunk;
        if (change == 2) action.kind = static_cast<ActionKind>((static_cast<int>(action.kind) + 1) % 8);
        if (change == 3) action.peer = action.peer < 0 ? 0 : (action.peer + 1) % table.num_stages;
        EXPECT_FALSE(inspect_table(table).ok()) << "rank " << rank << " action " << i << " change " << change;
      }
    }
  }
}

TEST(Verify, TakesARightTableWithWeightActions) {
  auto table = build_schedule("1f1b", {2, 1, 3});
  table.live_activation_bounds.clear();  // those of 1f1b end at the backward
  for (auto& actions : table.ranks) {
    for (int microbatch = 0; microbatch < 3; ++microbatch)
      actions.push_back({ActionKind::weight, microbatch, 0, -1, -1});
  }
  EXPECT_TRUE(inspect_table(table).ok());
}

}  // namespace
}  // namespace metroplex::plan::verify_test
