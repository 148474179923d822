// Every builder over a grid of sizes: the tables verify, match Megatron's work and order, and hold no more than
// promised; impossible requests are rejected.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "plan/graph_plan.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"
#include "support/megatron_captures.h"

namespace metroplex::plan::schedules_test {
namespace {

// Microbatches of each chunk's forwards and backwards must be first in, first out.
bool is_fifo(const PipelineTable& table, int rank) {
  std::vector<int> forwards(static_cast<size_t>(table.num_chunks), 0), backwards(forwards);
  for (const Action& action : table.ranks[static_cast<size_t>(rank)]) {
    const auto chunk = static_cast<size_t>(action.chunk);
    if (action.kind == ActionKind::forward && action.microbatch != forwards[chunk]++) return false;
    if (action.kind == ActionKind::backward && action.microbatch != backwards[chunk]++) return false;
  }
  return true;
}

MicrobatchShape make_shape(const ScheduleRequest& request, bool interleaved) {
  MicrobatchShape shape;
  shape.num_stages = request.num_stages;
  shape.num_chunks = request.num_chunks;
  shape.interleaved = interleaved;
  shape.num_microbatches = request.num_microbatches;
  shape.group_size = request.microbatch_group_size;
  shape.forward_only = request.forward_only;
  return shape;
}

TEST(OneFOneB, VerifiesAndIsInMegatronsOrderForAllSizes) {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      const ScheduleRequest request{stages, 1, microbatches};
      const auto table = build_schedule("1f1b", request);
      const auto report = verify(table);
      for (int rank = 0; rank < stages; ++rank) {
        const auto counts = count_warmup(make_shape(request, false), rank);
        EXPECT_EQ(capture_order(table, rank),
                  table_to_order(counts.warmup, 1, schedule_table(microbatches, 1, microbatches)));
        EXPECT_TRUE(is_fifo(table, rank));
        EXPECT_EQ(report.peak_live_activations[static_cast<size_t>(rank)], std::min(microbatches, stages - rank));
        EXPECT_LE(report.peak_received[static_cast<size_t>(rank)], 2) << "one input and one gradient at most wait";
      }
    }
  }
}

TEST(Interleaved, VerifiesAndIsInMegatronsOrderForAllSizesAndGroups) {
  int built = 0;
  for (int stages = 2; stages <= 5; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int microbatches = stages; microbatches <= 3 * stages + 1; ++microbatches) {
        for (int group = stages; group <= microbatches; ++group) {
          for (const bool overlap : {false, true}) {
            const ScheduleRequest request{stages, chunks, microbatches, group, false, overlap};
            const auto shape = make_shape(request, true);
            if (!interleaved_refusal(shape).empty()) continue;
            const auto table = build_schedule("interleaved", request);
            const auto report = verify(table);
            ++built;
            const auto slots = schedule_table(microbatches, chunks, group);
            for (int rank = 0; rank < stages; ++rank) {
              const auto order = table_to_order(count_warmup(shape, rank).warmup, chunks, slots);
              ASSERT_EQ(capture_order(table, rank), order)
                  << stages << " " << chunks << " " << microbatches << " " << group;
              EXPECT_TRUE(is_fifo(table, rank));
              EXPECT_EQ(report.peak_live_activations[static_cast<size_t>(rank)], peak_in_flight(order));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(built, 500);
}

// verify() proves that every microbatch passes every chunk once, in order, without deadlock and within the bound.
TEST(Interleaved, RunsAnyNumberOfMicrobatches) {
  int beyond_megatron = 0;
  for (int stages = 2; stages <= 5; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (int microbatches = 1; microbatches <= 3 * stages; ++microbatches) {
        for (int group = stages; group <= 2 * stages + 1; ++group) {
          for (const bool overlap : {false, true}) {
            for (const bool forward_only : {false, true}) {
              const ScheduleRequest request{stages, chunks, microbatches, group, forward_only, overlap};
              if (interleaved_refusal(make_shape(request, true)).empty()) continue;
              const auto table = build_schedule("interleaved", request);
              verify(table);
              for (int rank = 0; rank < stages; ++rank) EXPECT_TRUE(is_fifo(table, rank));
              ++beyond_megatron;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(beyond_megatron, 1000);
  EXPECT_THROW(build_schedule("interleaved", {4, 2, 8, 3}), base::Error) << "a group smaller than the stages";
}

TEST(Gpipe, RunsAllForwardsBeforeAnyBackward) {
  for (int stages = 1; stages <= 6; ++stages) {
    const auto table = build_schedule("gpipe", {stages, 1, 7});
    const auto report = verify(table);
    for (int rank = 0; rank < stages; ++rank) {
      const auto order = capture_order(table, rank);
      EXPECT_TRUE(std::is_partitioned(order.begin(), order.end(), [](int entry) { return entry > 0; }));
      EXPECT_EQ(report.peak_live_activations[static_cast<size_t>(rank)], 7);
    }
  }
}

TEST(None, RunsTheChunksOfOneRankWithoutAnySendOrReceive) {
  for (int chunks = 1; chunks <= 3; ++chunks) {
    const auto table = build_schedule("none", {1, chunks, 4});
    EXPECT_EQ(verify(table).peak_live_activations, std::vector<int>{chunks});
    for (const Action& action : table.ranks[0]) EXPECT_TRUE(is_compute(action.kind));
  }
  EXPECT_THROW(build_schedule("none", {2, 1, 4}), base::Error);
}

TEST(ForwardOnly, HasNoBackwardAndFreesEveryOutputThatItSends) {
  for (const std::string& name : config::words_of<config::Schedule>()) {
    if (name == "auto") continue;
    const bool v_shaped = config::is_v_shaped(config::Choice<config::Schedule>(name), 1);
    const int stages = name == "none" ? 1 : 3, chunks = name == "interleaved" || v_shaped ? 2 : 1;
    const auto table = build_schedule(name, {stages, chunks, 6, 0, true});
    const auto report = verify(table);
    EXPECT_EQ(report.peak_live_activations, std::vector<int>(static_cast<size_t>(stages), 0)) << name;
    int sends = 0, frees = 0;
    for (const auto& actions : table.ranks) {
      for (const Action& action : actions) {
        EXPECT_NE(action.kind, ActionKind::backward) << name;
        sends += action.kind == ActionKind::send_forward;
        frees += action.kind == ActionKind::free;
      }
    }
    const int borders = stages * chunks - 1 - (v_shaped ? 1 : 0);  // no rank sends at the turn of a V
    EXPECT_EQ(sends, borders * 6) << name;
    EXPECT_EQ(frees, sends) << name;
  }
}

TEST(Registry, ChoosesThePlainestScheduleThatFits) {
  EXPECT_EQ(build_schedule("auto", {1, 1, 4}).name, "none");
  EXPECT_EQ(build_schedule("auto", {1, 2, 4}).name, "none");
  EXPECT_EQ(build_schedule("auto", {4, 1, 4}).name, "1f1b");
  EXPECT_EQ(build_schedule("auto", {4, 2, 4}).name, "interleaved");
}

TEST(Registry, RefusesWhatCannotBeBuiltAndSuggestsTheNearestName) {
  try {
    build_schedule("interleavd", {2, 2, 4});
    FAIL() << "an unknown name was taken";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'interleaved'"), std::string::npos) << error.what();
  }
  EXPECT_THROW(build_schedule("1f1b", {2, 2, 4}), base::Error);
  EXPECT_THROW(build_schedule("gpipe", {2, 2, 4}), base::Error);
  EXPECT_THROW(build_schedule("interleaved", {1, 2, 4}), base::Error);
  EXPECT_THROW(build_schedule("auto", {0, 1, 4}), base::Error);
  EXPECT_THROW(build_schedule("auto", {2, 0, 4}), base::Error);
  EXPECT_THROW(build_schedule("auto", {2, 1, 0}), base::Error);
  EXPECT_THROW(build_schedule("auto", {2, 2, 4, -1}), base::Error);
  EXPECT_THROW(build_schedule("auto", {2, 1 << 12, 1 << 20}), base::Error);
}

TEST(Interleaved, PutsTheNeighboursTransfersOfASlotIntoOneBatch) {
  const auto table = build_schedule("interleaved", {4, 2, 8});
  int fours = 0;
  const auto& actions = table.ranks[1];
  for (size_t i = 0; i < actions.size();) {
    size_t end = i + 1;
    while (end < actions.size() && actions[i].batch >= 0 && actions[end].batch == actions[i].batch) ++end;
    fours += end - i == 4;
    i = end;
  }
  EXPECT_GE(fours, 7) << "send and receive, forward and backward, travel together in the steady state";
}

}  // namespace
}  // namespace metroplex::plan::schedules_test
