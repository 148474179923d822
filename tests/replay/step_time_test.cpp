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

plan::PipelineTable table(int stages, int microbatches) {
  plan::ScheduleRequest request;
  request.num_stages = stages;
  request.num_microbatches = microbatches;
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
