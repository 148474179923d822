// Tables whose forwards advance in turns with backwards of other microbatches.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/schedules/registry.h"
#include "plan/transfers.h"
#include "plan/verify.h"

namespace metroplex::plan::overlapped_test {
namespace {

ScheduleRequest overlapped(int stages, int chunks, int microbatches, bool delays = false) {
  ScheduleRequest request{stages, chunks, microbatches};
  request.overlaps_experts = true;
  request.delays_weights = delays;
  return request;
}

int count_pairs(const PipelineTable& table, size_t rank) {
  const auto& actions = table.ranks[rank];
  return static_cast<int>(std::count_if(actions.begin(), actions.end(), [](const Action& a) { return a.in_turns; }));
}

TEST(Overlapped, TablesOfAllSizesAreValid) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (int microbatches = 1; microbatches <= 20; ++microbatches) {
        for (const bool delays : {false, true}) {
          SCOPED_TRACE(testing::Message() << stages << " x " << chunks << ", " << microbatches << delays);
          const PipelineTable table = build_schedule("auto", overlapped(stages, chunks, microbatches, delays));
          verify(table);
          EXPECT_EQ(table.splits_backward(), delays);
          // Without warm-up every forward has a partner. Megatron-LM's number of warm-up forwards, and one more.
          for (int rank = 0; rank < stages && microbatches % stages == 0; ++rank) {
            const int warmup = stages == 1 ? chunks : 2 * (stages - rank - 1) + (chunks - 1) * stages + 1;
            EXPECT_EQ(count_pairs(table, static_cast<size_t>(rank)), std::max(0, microbatches * chunks - warmup));
          }
        }
      }
    }
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      const PipelineTable table = build_schedule("dualpipe_v", overlapped(stages, 2, microbatches));
      verify(table);
      EXPECT_TRUE(microbatches < 2 * stages || count_pairs(table, 0) > 0);
    }
  }
}

TEST(Overlapped, EvaluationHasNoPairs) {
  for (const char* name : {"1f1b", "interleaved", "dualpipe_v"}) {
    ScheduleRequest request = overlapped(4, std::string(name) == "1f1b" ? 1 : 2, 8);
    request.forward_only = true;
    const PipelineTable table = build_schedule(name, request);
    for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(count_pairs(table, rank), 0) << name;
  }
}

// A pair starts when both inputs have arrived, and its results leave at its end.
TEST(Overlapped, APairTakesTheTimeOfBoth) {
  const PipelineTable table = build_schedule("1f1b", overlapped(1, 1, 3));
  const auto ranks = simulate(table, {.forward = 1, .backward = 2});
  ASSERT_EQ(ranks[0].size(), 6u);
  EXPECT_EQ(ranks[0][1].start, 1);
  EXPECT_EQ(ranks[0][1].end, 4);
  EXPECT_EQ(ranks[0][2].start, 1);
  EXPECT_EQ(ranks[0][2].end, 4);
  const PipelineTable two = build_schedule("1f1b", overlapped(2, 1, 4));
  for (const auto& actions : two.ranks) {
    for (size_t i = 0; i + 1 < actions.size(); ++i) {
      if (!actions[i].in_turns) continue;
      EXPECT_EQ(actions[i + 1].kind, ActionKind::backward);
    }
  }
}

TEST(Overlapped, VerifyRejectsWrongPairs) {
  const PipelineTable right = build_schedule("1f1b", overlapped(2, 1, 6));
  int faults = 0;
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t i = 0; i < right.ranks[rank].size(); ++i) {
      PipelineTable table = right;
      Action& action = table.ranks[rank][i];
      if (action.in_turns) continue;
      action.in_turns = true;
      EXPECT_FALSE(inspect_table(table).ok()) << "rank " << rank << " action " << i;
      ++faults;
    }
  }
  EXPECT_GT(faults, 30);
  PipelineTable same = build_schedule("none", {1, 1, 2});
  same.ranks[0][0].in_turns = true;  // forward and backward of microbatch 0
  EXPECT_FALSE(inspect_table(same).ok());
}

}  // namespace
}  // namespace metroplex::plan::overlapped_test
