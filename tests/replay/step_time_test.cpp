// Simulated steps of hand-made traces, with times computed by hand.
#include "replay/step_time.h"

#include <gtest/gtest.h>

#include "plan/schedules/registry.h"
#include "replay/timeline.h"

namespace metroplex::test::step_time_test {
namespace {

using plan::ActionKind;
using replay::Position;
using replay::StepTrace;
using replay::TraceOperation;

// One FLOP and one byte take a second; a collective of two ranks takes bytes / 2.
price::Machine machine() {
  price::Machine machine;
  machine.gpu = true;
  machine.peak_flops = {{"bf16", 1.0}};
  machine.memory_bytes_per_s = 1;
  machine.cluster.domains = {{"link", 0, {0, 1}}};
  return machine;
}

TraceOperation product(double flops) { return {"mm", "", flops, 0, "bf16"}; }
TraceOperation collective(const char* name, int64_t bytes, int call) { return {name, "tp", 0, bytes, "", call}; }
TraceOperation wait(int call) { return {"wait", "tp", 0, 0, "", call}; }

replay::TracedAction action(ActionKind kind, Position position, std::vector<TraceOperation> operations) {
  replay::IslandTrace region;
  region.operations = std::move(operations);
  return {kind, 0, position, {region}};
}

plan::PipelineTable table(int stages, int microbatches, bool in_turns = false, bool delays_weights = false) {
  plan::ScheduleRequest request;
  request.num_stages = stages;
  request.num_microbatches = microbatches;
  request.overlaps_experts = in_turns;
  request.delays_weights = delays_weights;
  return plan::build_schedule(stages > 1 ? config::Schedule::one_f_one_b : config::Schedule::none, request);
}

StepTrace trace(std::vector<TraceOperation> forward, std::vector<TraceOperation> backward) {
  StepTrace trace;
  trace.groups["tp"] = {"layers", {0, 1}};
  for (const Position position : {Position::first, Position::middle, Position::last}) {
    trace.actions.push_back(action(ActionKind::forward, position, forward));
    trace.actions.push_back(action(ActionKind::backward, position, backward));
  }
  return trace;
}

TEST(StepTime, OverlapsCollectivesUntilTheirWait) {
  // 8 bytes take 4 s. 3 s of work overlap, 1 s is exposed.
  const std::vector<StepTrace> traces{
      trace({collective("all_gather", 8, 1), product(3), wait(1), product(2)}, {product(5)})};
  const replay::StepTime time = replay::simulate_step({machine(), table(1, 2), traces});
  EXPECT_DOUBLE_EQ(time.seconds, 2 * (6 + 5));
  EXPECT_DOUBLE_EQ(time.ranks[0].forward, 10);
  EXPECT_DOUBLE_EQ(time.ranks[0].backward, 10);
  EXPECT_DOUBLE_EQ(time.ranks[0].exposed.at("layers"), 2);
  EXPECT_DOUBLE_EQ(time.ranks[0].total(), time.seconds);
}

TEST(StepTime, SerializesCollectivesOfACommunicator) {
  const std::vector<StepTrace> traces{
      trace({collective("all_gather", 8, 1), collective("all_gather", 8, 2), wait(2)}, {product(1)})};
  EXPECT_DOUBLE_EQ(replay::simulate_step({machine(), table(1, 1), traces}).seconds, 8 + 1);
}

TEST(StepTime, SharesLinksBetweenCommunicators) {
  StepTrace shared =
      trace({collective("all_gather", 8, 1), {"all_gather", "dp", 0, 4, "", 2}, wait(1)}, {product(1)});
  shared.groups["dp"] = {"gradients", {0, 1}};
  // 4 s and 2 s on one link: the second ends after 4 s, the first after 6 s.
  const replay::StepTime time = replay::simulate_step({machine(), table(1, 1), {shared}});
  EXPECT_DOUBLE_EQ(time.seconds, 6 + 1);
  EXPECT_DOUBLE_EQ(time.ranks[0].exposed.at("layers"), 6);
}

TEST(StepTime, EqualsTheTimelineOfAPipeline) {
  for (const int stages : {2, 3, 4}) {
    for (const int microbatches : {1, 2, 5, 8}) {
      std::vector<StepTrace> traces(static_cast<size_t>(stages), trace({product(1)}, {product(2)}));
      for (StepTrace& one : traces) {
        one.border_bytes.assign(static_cast<size_t>(stages - 1), 0);
        one.groups["pp"] = {"pipeline", {}};
        for (int rank = 0; rank < stages; ++rank) one.groups["pp"].ranks.push_back(2 * rank);
      }
      const plan::PipelineTable pipeline = table(stages, microbatches);
      const replay::StepTime time = replay::simulate_step({machine(), pipeline, traces, false, {}, true});
      const replay::Timeline timeline = replay::replay(pipeline, {.forward = 1, .backward = 2});
      EXPECT_DOUBLE_EQ(time.seconds, timeline.length) << stages << " " << microbatches;
      for (size_t rank = 0; rank < traces.size(); ++rank) {
        EXPECT_DOUBLE_EQ(time.ranks[rank].total(), time.seconds);
        EXPECT_DOUBLE_EQ(time.ranks[rank].compute(), timeline.busy[rank]);
        ASSERT_EQ(time.timeline.ranks[rank].size(), timeline.ranks[rank].size());
        for (size_t i = 0; i < timeline.ranks[rank].size(); ++i) {
          EXPECT_EQ(time.timeline.ranks[rank][i].action, timeline.ranks[rank][i].action);
          EXPECT_DOUBLE_EQ(time.timeline.ranks[rank][i].start, timeline.ranks[rank][i].start);
          EXPECT_DOUBLE_EQ(time.timeline.ranks[rank][i].end, timeline.ranks[rank][i].end);
        }
      }
      // Each border adds its time twice on the critical path of a single microbatch.
      for (StepTrace& one : traces) one.border_bytes.assign(static_cast<size_t>(stages - 1), 1);
      if (microbatches > 1) continue;
      EXPECT_DOUBLE_EQ(replay::simulate_step({machine(), pipeline, traces}).seconds,
                       timeline.length + 2 * (stages - 1));
    }
  }
}

TEST(StepTime, WaitsForOtherStagesInSharedGroups) {
  std::vector<StepTrace> traces(2, trace({product(1)}, {product(1)}));
  for (StepTrace& one : traces) {
    one.border_bytes = {0};
    one.groups["pp"] = {"pipeline", {0, 1}};
    one.groups["tp"] = {"gradients", {0, 1}};
    replay::IslandTrace region;
    region.operations = {collective("all_reduce", 2, 9), wait(9)};
    one.after = {region};
  }
  const replay::StepTime time = replay::simulate_step({machine(), table(2, 1), traces});
  EXPECT_DOUBLE_EQ(time.seconds, 4 + 2);  // both stages wait for the last backward, then 2 s of communication
  EXPECT_DOUBLE_EQ(time.ranks[1].exposed.at("gradients"), 2);
  EXPECT_DOUBLE_EQ(time.ranks[1].idle, 1 + 1);
}

// Computes for `before` seconds, exchanges `bytes` / 2 seconds in turn, and so on; `last` follows the last exchange.
std::vector<TraceOperation> exchanges(int first_call, int count, double before, int64_t bytes, double last) {
  std::vector<TraceOperation> operations;
  for (int call = first_call; call < first_call + count; ++call) {
    TraceOperation in_turn = wait(call);
    in_turn.in_turn = true;
    operations.insert(operations.end(), {product(before), collective("all_to_all", bytes, call), in_turn});
  }
  operations.push_back(product(last));
  return operations;
}

// Two microbatches of one stage: forward 0, forward 1 and backward 0 in turns, backward 1.
replay::StepTime pair(const StepTrace& trace) {
  return replay::simulate_step({machine(), table(1, 2, true), {trace}, false, {}, true});
}

void expect_times(const replay::StepTime& time, double forward, double backward, double exposed) {
  EXPECT_DOUBLE_EQ(time.ranks[0].forward, forward);
  EXPECT_DOUBLE_EQ(time.ranks[0].backward, backward);
  EXPECT_DOUBLE_EQ(time.ranks[0].communication(), exposed);
  EXPECT_DOUBLE_EQ(time.seconds, forward + backward + exposed);
  EXPECT_DOUBLE_EQ(time.ranks[0].total(), time.seconds);
}

// The exchanges of backward 0 and forward 1 take 1 to 3 s and 3 to 5 s. The other two are exposed.
TEST(StepTimeInTurns, HidesExchangesOfAPair) {
  const StepTrace traced = trace(exchanges(1, 1, 2, 4, 3), exchanges(2, 1, 1, 4, 4));
  const replay::StepTime time = pair(traced);
  expect_times(time, 2 * 5, 2 * 5, 2 + 2);
  const double bounds[] = {0, 7, 8, 10, 14, 17, 24};  // the turns
  ASSERT_EQ(time.timeline.ranks[0].size(), std::size(bounds) - 1);
  for (size_t i = 0; i + 1 < std::size(bounds); ++i) {
    const replay::TimedAction& turn = time.timeline.ranks[0][i];
    EXPECT_EQ(turn.action.kind, i % 2 == 0 ? ActionKind::forward : ActionKind::backward) << i;
    EXPECT_DOUBLE_EQ(turn.start, bounds[i]);
    EXPECT_DOUBLE_EQ(turn.end, bounds[i + 1]);
  }
  EXPECT_DOUBLE_EQ(time.timeline.busy[0], time.seconds);
}

// Exchanges of 5 s. That of backward 0 waits 3 s of 1 to 6 s, that of forward 1 waits 1 s of 6 to 11 s.
TEST(StepTimeInTurns, HidesPartOfLongExchanges) {
  expect_times(pair(trace(exchanges(1, 1, 2, 10, 3), exchanges(2, 1, 1, 10, 4))), 2 * 5, 2 * 5, 5 + 3 + 1 + 5);
}

// Forward 1 only exchanges while backward 0 does: 1 to 3 s and 3 to 5 s.
TEST(StepTimeInTurns, HidesNothingWithoutComputation) {
  expect_times(pair(trace(exchanges(1, 1, 0, 4, 3), exchanges(2, 1, 1, 4, 0))), 2 * 3, 2 * 1, 4 * 2);
}

TEST(StepTimeInTurns, GoesOnAfterTheShorterPass) {
  // Backward 0 ends at 7 s and hides one of three exchanges of forward 1. It waits 1 s for its own.
  expect_times(pair(trace(exchanges(1, 3, 1, 4, 1), exchanges(4, 1, 1, 4, 4))), 2 * 4, 2 * 5, 6 + (1 + 4) + 2);
  // Forward 1 ends at 6 s after 1 s of waiting. Backward 0 waits 1 and 2 s for its last exchanges.
  expect_times(pair(trace(exchanges(1, 1, 2, 4, 1), exchanges(2, 3, 1, 4, 1))), 2 * 3, 2 * 4, 2 + (1 + 3) + 6);
  // A backward without exchanges keeps its turn.
  expect_times(pair(trace(exchanges(1, 2, 1, 4, 1), {product(6)})), 2 * 3, 2 * 6, 4 + 4);
}

TEST(StepTimeInTurns, ComputesWeightsAfterAPair) {
  StepTrace traced = trace(exchanges(1, 1, 2, 4, 3), exchanges(2, 1, 1, 4, 4));
  traced.actions.push_back(action(ActionKind::weight, Position::first, {product(6)}));
  const replay::StepTime time =
      replay::simulate_step({machine(), table(1, 2, true, true), {traced}, false, {}, true});
  EXPECT_DOUBLE_EQ(time.seconds, 24 + 2 * 6);
  EXPECT_DOUBLE_EQ(time.ranks[0].weight, 2 * 6);
  EXPECT_EQ(time.timeline.ranks[0][5].action.kind, ActionKind::weight);
  EXPECT_DOUBLE_EQ(time.timeline.ranks[0][5].start, 17);
}

TEST(StepTimeInTurns, NeedsPairsAndTurns) {
  const std::vector<StepTrace> traces{trace(exchanges(1, 1, 2, 4, 3), exchanges(2, 1, 1, 4, 4))};
  const replay::StepTime time = replay::simulate_step({machine(), table(1, 2), traces, false, {}, true});
  expect_times(time, 2 * 5, 2 * 5, 4 * 2);
  EXPECT_EQ(time.timeline.ranks[0].size(), 4u);
  StepTrace other_waits = traces[0];
  for (replay::TracedAction& one : other_waits.actions) {
    for (TraceOperation& operation : one.regions[0].operations) operation.in_turn = false;
  }
  expect_times(pair(other_waits), 2 * 5, 2 * 5, 4 * 2);
  EXPECT_EQ(replay::count_collectives(traces[0], table(1, 2), 0),
            replay::count_collectives(traces[0], table(1, 2, true), 0));
}

// Both stages share a group. Rank 0 exchanges in backward 0 and forward 3, which are a pair from 4 s on. Rank 1
// exchanges in backward 1, paired with forward 2 from 4 s on, and in backward 2, paired with forward 3 from 8 s on.
// The exchanges take 5 to 7 s and 9 to 11 s.
TEST(StepTimeInTurns, WaitsForPairsOfOtherRanks) {
  std::vector<StepTrace> traces(2, trace({product(1)}, {product(1)}));
  for (StepTrace& one : traces) {
    one.border_bytes = {0};
    one.groups["pp"] = {"pipeline", {0, 1}};
  }
  const auto exchange = [&](size_t rank, ActionKind kind, Position position, int call) {
    for (replay::TracedAction& one : traces[rank].actions) {
      if (one.kind == kind && one.position == position) one.regions[0].operations = exchanges(call, 1, 1, 4, 1);
    }
  };
  exchange(0, ActionKind::backward, Position::first, 1);
  exchange(0, ActionKind::forward, Position::last, 2);
  exchange(1, ActionKind::backward, Position::middle, 1);
  const replay::StepTime time = replay::simulate_step({machine(), table(2, 4, true), traces});
  EXPECT_DOUBLE_EQ(time.seconds, 16);
  const double forward[] = {5, 4}, backward[] = {5, 6}, exposed[] = {1 + 2, 1}, idle[] = {1 + 1 + 1, 1 + 3 + 1};
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_DOUBLE_EQ(time.ranks[rank].forward, forward[rank]);
    EXPECT_DOUBLE_EQ(time.ranks[rank].backward, backward[rank]);
    EXPECT_DOUBLE_EQ(time.ranks[rank].exposed.at("layers"), exposed[rank]);
    EXPECT_DOUBLE_EQ(time.ranks[rank].idle, idle[rank]);
  }
}

TEST(StepTime, LaunchesLimitSmallOperators) {
  price::Machine slow = machine();
  slow.launch_s = 4;
  const std::vector<StepTrace> traces{trace({product(1), product(6)}, {product(1)})};
  EXPECT_DOUBLE_EQ(replay::simulate_step({slow, table(1, 1), traces}).seconds, 4 + 6 + 4);
  EXPECT_DOUBLE_EQ(replay::simulate_step({slow, table(1, 1), traces, true}).seconds, 1 + 6 + 1);
}

TEST(StepTime, LaunchesCapturedRegionsOnce) {
  price::Machine slow = machine();
  slow.launch_s = 4;
  std::vector<StepTrace> traces{trace({product(1), product(1)}, {product(1)})};
  for (replay::TracedAction& one : traces[0].actions) one.regions[0].captured = one.kind == ActionKind::forward;
  EXPECT_DOUBLE_EQ(replay::simulate_step({slow, table(1, 1), traces}).seconds, 4 + 1 + 1 + 4);
}

TEST(StepTime, ScalesOperatorsOfExperts) {
  std::vector<StepTrace> traces{trace({{"grouped_mm", "", 4, 0, "bf16"}, product(1)}, {product(1)})};
  EXPECT_DOUBLE_EQ(replay::simulate_step({machine(), table(1, 1), traces, true, {1.5}}).seconds, 6 + 1 + 1);
  // A quarter of the buffer holds rows: half of 1.5 * 4 bytes leaves the rank.
  traces = {trace({collective("exchange_rows", 16, 1), wait(1)}, {product(1)})};
  EXPECT_DOUBLE_EQ(replay::simulate_step({machine(), table(1, 1), traces, true, {1.5, 0.25}}).seconds, 3 + 1);
  traces = {trace({{"expert_activation", "", 0, 16, "bf16"}}, {product(1)})};
  EXPECT_DOUBLE_EQ(replay::simulate_step({machine(), table(1, 1), traces, true, {1.5, 0.25}}).seconds, 6 + 1);
  traces = {trace({collective("fetch_rows", 16, 1), wait(1)}, {product(1)})};
  EXPECT_DOUBLE_EQ(replay::simulate_step({machine(), table(1, 1), traces, true, {1.5, 0.25, 0.5}}).seconds, 8 + 1);
}

}  // namespace
}  // namespace metroplex::test::step_time_test
