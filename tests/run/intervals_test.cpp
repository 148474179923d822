#include "run/intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace metroplex::run::intervals_test {
namespace {

config::Config every(int64_t log, int64_t save, int64_t evaluate, int64_t exit_early) {
  config::Config config;
  config.train.train_iters = 10;
  config.train.global_batch_size = 1;
  config.train.log_interval = log;
  config.checkpoint.save_interval = save;
  config.train.eval_interval = evaluate;
  config.train.exit_interval = exit_early;
  return config;
}

Due after(const config::Config& config, int64_t iteration, bool stop_requested = false) {
  Position position;
  position.iteration = iteration;
  return actions_due(config, step::microbatch_schedule(config, 1), position, stop_requested);
}

std::string words(const Due& due) {
  return std::string(due.log ? "log " : "") + (due.save ? "save " : "") + (due.evaluate ? "evaluate " : "") +
         (due.last ? "last " : "") + (due.exit_early ? "leave " : "");
}

TEST(Intervals, EachThingIsDueAtMultiplesOfItsOwn) {
  const config::Config config = every(2, 3, 4, 0);
  EXPECT_EQ(words(after(config, 1)), "");
  EXPECT_EQ(words(after(config, 2)), "log ");
  EXPECT_EQ(words(after(config, 3)), "save ");
  EXPECT_EQ(words(after(config, 4)), "log evaluate ");
  EXPECT_EQ(words(after(config, 6)), "log save ");
}

TEST(Intervals, TheLastStepLogsAndSavesAndLeavesEvaluationToTheEnd) {
  EXPECT_EQ(words(after(every(100, 0, 5, 5), 10)), "log save last ");
}

// A resumed run does not evaluate again.
TEST(Intervals, WhoReachesTheExitIntervalSavesAndEvaluatesAndWhoIsAskedToStopOnlySaves) {
  const config::Config config = every(100, 0, 5, 5);
  EXPECT_EQ(words(after(config, 5)), "save evaluate leave ");
  EXPECT_EQ(words(after(config, 5, true)), "log save leave ");
  EXPECT_EQ(words(after(config, 4, true)), "log save leave ");
  EXPECT_EQ(words(after(config, 10, true)), "log save last ");
}

TEST(Intervals, RunOfSamplesDropsPartialBatch) {
  config::Config config = every(100, 0, 0, 0);
  config.train.train_iters = 0;
  config.train.train_samples = 67;
  config.train.global_batch_size = 4;
  const plan::MicrobatchSchedule schedule = step::microbatch_schedule(config, 1);
  EXPECT_TRUE(step::has_more_steps(config.train, schedule, 1000, 60));
  EXPECT_FALSE(step::has_more_steps(config.train, schedule, 1000, 64));
  Position position;
  position.consumed_train_samples = 64;
  EXPECT_TRUE(actions_due(config, schedule, position, false).last);
}

TEST(Interval, MeansAreOverStepsThatUpdatedAndTokensOverAll) {
  Interval interval;
  step::StepOutcome step;
  step.updated = true;
  step.loss = 2;
  step.terms = {{"z loss", 0.5}};
  interval.add(step, 100);
  step.loss = 4;
  step.terms = {{"z loss", 0.75}};
  interval.add(step, 100);
  step.updated = false;
  step.loss = std::nan("");
  interval.add(step, 100);
  interval.exclude(-std::chrono::hours(1));
  const IterationMetrics m = interval.means();
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
  EXPECT_FALSE(norms.is_outlier(1));
  EXPECT_FALSE(norms.is_outlier(1000));  // part of the norms' history
  LargestNorm taught;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(taught.is_outlier(1));
  EXPECT_FALSE(taught.is_outlier(10));
  EXPECT_TRUE(taught.is_outlier(101));
  EXPECT_TRUE(taught.is_outlier(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(taught.is_outlier(1011)) << "an infinite norm is not the largest";
}

}  // namespace
}  // namespace metroplex::run::intervals_test
