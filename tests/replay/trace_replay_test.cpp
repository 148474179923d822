// Small traces replayed over real tables: the held memory, computed by hand.
#include "replay/rank_trace.h"

#include <gtest/gtest.h>

#include "replay/memory.h"
#include "plan/schedules/registry.h"

namespace metroplex::test::trace_replay_test {
namespace {

using replay::TraceStep;

// One block: forward takes 50 temporarily, holds 30 and outputs 10; its input is 10 if there is a stage before it.
// Backward receives 10, takes at most 20 more and frees everything.
replay::ChunkTrace chunk() {
  replay::ChunkTrace chunk;
  replay::IslandTrace forward;
  forward.block = 0;
  forward.steps = {{40, 50, TraceStep::End::nothing, 0}};
  chunk.forward.regions = {forward};
  chunk.forward.added = 30;
  replay::IslandTrace backward;
  backward.block = 0;
  backward.backward = true;
  backward.steps = {{20, 20, TraceStep::End::opens, 0}, {-50, 0, TraceStep::End::used, 0}};
  chunk.backward.regions = {backward};
  chunk.backward.added = -30;
  chunk.input = chunk.output = 10;
  return chunk;
}

replay::RankTrace make_trace(int chunks) {
  replay::RankTrace trace;
  trace.params = {{"weight", {4, 2}, 1}};
  trace.chunks.assign(static_cast<size_t>(chunks), chunk());
  trace.batch = 1000;
  trace.parameters = 7;
  return trace;
}

plan::PipelineTable one_f_one_b(int stages, int microbatches) {
  plan::ScheduleRequest request;
  request.num_stages = stages;
  request.num_microbatches = microbatches;
  return plan::build_schedule(stages > 1 ? config::Schedule::one_f_one_b : config::Schedule::none, request);
}

// For a single autograd region (`IslandTrace`): its remaining memory and its peak, step by step.
TEST(TraceReplay, AnIslandTakesWhatItsStepsTakeTogether) {
  replay::IslandTrace region;
  region.steps = {
      {40, 50, TraceStep::End::nothing, 0}, {-10, 5, TraceStep::End::used, 0}, {3, 30, TraceStep::End::nothing, 0}};
  EXPECT_EQ(region.net(), 33);
  EXPECT_EQ(region.most(), 60);
}

TEST(TraceReplay, OneStageHoldsOneMicrobatch) {
  replay::RankTrace trace = make_trace(1);
  trace.chunks[0].forward.regions[0].steps[0] = {30, 50, TraceStep::End::nothing, 0};  // no output
  trace.chunks[0].backward.regions[0].steps = {{20, 20, TraceStep::End::opens, 0}, {-50, 0, TraceStep::End::used, 0}};
  const replay::ReplayPeaks peaks = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(peaks.activations, 30);
  EXPECT_EQ(peaks.borders, 0);
  EXPECT_EQ(peaks.most, 50);  // 30 + 20 in backward, 50 in forward
  EXPECT_EQ(peaks.moments.size(), 6u);
  EXPECT_EQ(peaks.moments[0].most, 50);
  EXPECT_EQ(peaks.moments[1].most, 20);
  const replay::MemoryPrediction whole = replay::predict_memory(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(whole.batches, 3000);
  EXPECT_EQ(whole.peak, 7 + 3000 + 50);
  EXPECT_EQ(whole.use.workspace, 3020);
  trace.tables = 400;
  EXPECT_EQ(replay::predict_memory(trace, one_f_one_b(1, 3), 0).peak, whole.peak + 400);
}

// The first of two stages has two microbatches in flight and, in addition, outputs that may not have been sent.
TEST(TraceReplay, TheFirstOfTwoStagesHoldsTwo) {
  const replay::ReplayPeaks peaks = replay::replay_trace(make_trace(1), one_f_one_b(2, 4), 0);
  EXPECT_EQ(peaks.activations, 60);
  EXPECT_GE(peaks.borders, 10);
  EXPECT_LE(peaks.borders, 40);
  EXPECT_EQ(replay::predict_memory(make_trace(1), one_f_one_b(2, 4), 0).use.activations, 60 + peaks.borders);
}

// A bucket of 100 bytes is allocated with the gradient and held until the next one leaves; without overlap it is
// freed at once.
TEST(TraceReplay, ABucketPassesWhileItsGradientsCome) {
  replay::RankTrace trace = make_trace(1);
  trace.transient = {{{100}, {{0}}}};
  trace.chunks[0].forward.regions[0].steps[0] = {30, 30, TraceStep::End::nothing, 0};
  trace.chunks[0].backward.regions[0].steps = {{20, 20, TraceStep::End::opens, 0}, {-50, 0, TraceStep::End::used, 0}};
  const replay::ReplayPeaks alone = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(alone.gradient_buckets, 100);
  EXPECT_EQ(alone.most, 30 + 20 + 100);
  trace.overlaps = true;
  const replay::ReplayPeaks overlapped = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(overlapped.gradient_buckets, 200) << "one that fills, one that is reduced";
  EXPECT_EQ(overlapped.most, 30 + 20 + 200);
}

// The reduction of a transient bucket of 100 bytes needs 60 more. With overlap both exist until the next one leaves.
TEST(TraceReplay, AReductionHasBuffers) {
  replay::RankTrace trace = make_trace(1);
  trace.transient = {{{100}, {{0}}, {60}}};
  trace.chunks[0].forward.regions[0].steps[0] = {30, 30, TraceStep::End::nothing, 0};
  trace.chunks[0].backward.regions[0].steps = {{20, 20, TraceStep::End::opens, 0}, {-50, 0, TraceStep::End::used, 0}};
  const replay::ReplayPeaks alone = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(alone.gradient_buckets, 100);
  EXPECT_EQ(alone.most, 160) << "after the activations are freed";
  trace.overlaps = true;
  const replay::ReplayPeaks overlapped = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(overlapped.gradient_buckets, 260);
  EXPECT_EQ(overlapped.most, 30 + 20 + 260);
}

// A permanent bucket is reduced once: with its last gradient, or after the last action.
TEST(TraceReplay, APermanentBucketHasBuffersOnce) {
  replay::RankTrace trace = make_trace(1);
  trace.transient = {{{0}, {{0}}, {60}, true}};
  trace.chunks[0].forward.regions[0].steps[0] = {30, 30, TraceStep::End::nothing, 0};
  trace.chunks[0].backward.regions[0].steps = {
      {0, 0, TraceStep::End::opens, 0}, {-10, 0, TraceStep::End::used, 0}, {-20, 0, TraceStep::End::nothing, 0}};
  const replay::ReplayPeaks alone = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(alone.gradient_buckets, 0);
  EXPECT_EQ(alone.most, 60);
  trace.overlaps = true;
  const replay::ReplayPeaks overlapped = replay::replay_trace(trace, one_f_one_b(1, 3), 0);
  EXPECT_EQ(overlapped.gradient_buckets, 60);
  EXPECT_EQ(overlapped.most, 20 + 60);
}

// Two gradients per bucket, the second one of another parameter: the bucket leaves with the last one.
TEST(TraceReplay, ABucketWaitsForAllItsParameters) {
  replay::RankTrace trace = make_trace(1);
  trace.params.push_back({"bias", {2}, 1});
  trace.transient = {{{100}, {{0, 1}}}};
  std::vector<TraceStep>& steps = trace.chunks[0].backward.regions[0].steps;
  steps = {{0, 0, TraceStep::End::opens, 0},
           {0, 0, TraceStep::End::used, 0},
           {7, 7, TraceStep::End::opens, 1},
           {-37, 0, TraceStep::End::used, 1}};
  trace.chunks[0].forward.regions[0].steps[0] = {30, 30, TraceStep::End::nothing, 0};
  const replay::ReplayPeaks peaks = replay::replay_trace(trace, one_f_one_b(1, 1), 0);
  EXPECT_EQ(peaks.most, 30 + 7 + 100);
  EXPECT_EQ(peaks.gradient_buckets, 100);
}

// A pair of forward 1 and backward 0, from 30 bytes on: the backward takes 40 and leaves 5 with its turn, so the
// forward's 50 are on top of 35.
TEST(TraceReplay, PairsHoldWhatBothPassesHold) {
  replay::RankTrace trace = make_trace(1);
  trace.chunks[0].forward.regions[0].steps = {{20, 50, TraceStep::End::turn, 0},
                                              {10, 10, TraceStep::End::nothing, 0}};
  trace.chunks[0].backward.regions[0].steps = {{5, 40, TraceStep::End::turn, 0}, {-35, 0, TraceStep::End::used, 0}};
  EXPECT_EQ(replay::replay_trace(trace, one_f_one_b(1, 2), 0).most, 30 + 40) << "without pairs";
  plan::ScheduleRequest request;
  request.num_microbatches = 2;
  request.overlaps_experts = true;
  const replay::ReplayPeaks peaks = replay::replay_trace(trace, build_schedule(config::Schedule::none, request), 0);
  EXPECT_EQ(peaks.most, 35 + 50);
  EXPECT_EQ(peaks.activations, 30);
  ASSERT_EQ(peaks.moments.size(), 4u);
  EXPECT_TRUE(peaks.moments[1].backward) << "it ends first";
  EXPECT_EQ(peaks.moments[1].most, 40);
  EXPECT_EQ(peaks.moments[2].most, 85 - 30);
}

TEST(TraceReplay, TheUpdateComesAfterEverythingElse) {
  replay::RankTrace trace = make_trace(1);
  trace.chunks[0].forward.regions[0].steps[0] = {32, 50, TraceStep::End::nothing, 0};
  trace.chunks[0].forward.added = 32;  // 2 of them stay, as a loss does
  trace.chunks[0].backward.regions[0].steps = {{-30, 0, TraceStep::End::used, 0}};
  trace.update.steps = {{0, 500, TraceStep::End::nothing, 0}};
  EXPECT_EQ(replay::replay_trace(trace, one_f_one_b(1, 3), 0).most, 3 * 2 + 500);
}

}  // namespace
}  // namespace metroplex::test::trace_replay_test
