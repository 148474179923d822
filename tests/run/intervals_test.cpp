#include "run/intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace metroplex::run::intervals_test {
namespace {

config::Config every(int64_t log, int64_t save, int64_t evaluate, int64_t leave) {
  config::Config c;
  c.train.train_iters = 10;
  c.train.global_batch_size = 1;
  c.train.log_interval = log;
  c.checkpoint.save_interval = save;
  c.train.eval_interval = evaluate;
  c.train.exit_interval = leave;
  return c;
}

Due after(const config::Config& c, int64_t iteration, bool stop_requested = false) {
  Position position;
  position.iteration = iteration;
  return due_after(c, step::microbatch_schedule(c, 1), position, stop_requested);
}

std::string words(const Due& due) {
  return std::string(due.log ? "log " : "") + (due.save ? "save " : "") + (due.evaluate ? "evaluate " : "") +
         (due.last ? "last " : "") + (due.leave ? "leave " : "");
}

TEST(Intervals, EachThingIsDueAtMultiplesOfItsOwn) {
  const config::Config c = every(2, 3, 4, 0);
  EXPECT_EQ(words(after(c, 1)), "");
  EXPECT_EQ(words(after(c, 2)), "log ");
  EXPECT_EQ(words(after(c, 3)), "save ");
  EXPECT_EQ(words(after(c, 4)), "log evaluate ");
  EXPECT_EQ(words(after(c, 6)), "log save ");
}

TEST(Intervals, TheLastStepLogsAndSavesAndLeavesEvaluationToTheEnd) {
  EXPECT_EQ(words(after(every(100, 0, 5, 5), 10)), "log save last ");
}

// A resumed run does not evaluate again.
TEST(Intervals, WhoReachesTheExitIntervalSavesAndEvaluatesAndWhoIsAskedToStopOnlySaves) {
  const config::Config c = every(100, 0, 5, 5);
  EXPECT_EQ(words(after(c, 5)), "save evaluate leave ");
  EXPECT_EQ(words(after(c, 5, true)), "log save leave ");
  EXPECT_EQ(words(after(c, 4, true)), "log save leave ");
  EXPECT_EQ(words(after(c, 10, true)), "log save last ");
}

TEST(Intervals, RunOfSamplesDropsPartialBatch) {
  config::Config c = every(100, 0, 0, 0);
  c.train.train_iters = 0;
  c.train.train_samples = 67;
  c.train.global_batch_size = 4;
  const plan::MicrobatchSchedule schedule = step::microbatch_schedule(c, 1);
  EXPECT_TRUE(step::more_steps(c.train, schedule, 1000, 60));
  EXPECT_FALSE(step::more_steps(c.train, schedule, 1000, 64));
  Position position;
  position.consumed_train_samples = 64;
  EXPECT_TRUE(due_after(c, schedule, position, false).last);
}

TEST(Interval, MeansAreOverStepsThatUpdatedAndTokensOverAll) {
  Interval interval;
  step::StepOutcome step;
  step.updated = true;
  step.loss = 2;
  interval.add(step, 100, {{"z loss", 0.5}});
  step.loss = 4;
  interval.add(step, 100, {{"z loss", 0.75}});
  step.updated = false;
  step.loss = std::nan("");
  interval.add(step, 100);
  interval.leave_out(-std::chrono::hours(1));
  IterationMetrics m;
  interval.describe(m);
  EXPECT_EQ(m.lm_loss, 3);
  EXPECT_EQ(m.terms.at("z loss"), 0.625);
  EXPECT_EQ(m.skipped_iterations, 1);
  EXPECT_EQ(m.nan_iterations, 1);
  EXPECT_EQ(interval.steps(), 3);
  EXPECT_NEAR(m.tokens_per_second, 300.0 / 3600, 1e-3);
  EXPECT_NEAR(m.elapsed_ms_per_iteration, 1.2e6, 1e4);
  interval.begin();
  EXPECT_EQ(interval.steps(), 0);
}

TEST(LargestNorm, ASpikeCountsAfterAHundredNormsThatTeach) {
  LargestNorm norms;
  EXPECT_FALSE(norms.unexpectedly_large(1));
  EXPECT_FALSE(norms.unexpectedly_large(1000));  // part of the norms' history
  LargestNorm taught;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(taught.unexpectedly_large(1));
  EXPECT_FALSE(taught.unexpectedly_large(10));
  EXPECT_TRUE(taught.unexpectedly_large(101));
  EXPECT_TRUE(taught.unexpectedly_large(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(taught.unexpectedly_large(1011)) << "an infinite norm is not the largest";
}

}  // namespace
}  // namespace metroplex::run::intervals_test
