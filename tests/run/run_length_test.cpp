// Number of samples of iterations for each schedule of batch sizes; the decay of a learning rate ends with its
// iteration.
#include "step/run_length.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/lr_schedule.h"

namespace metroplex::run {
namespace {

config::Config stepped(const std::string& steps) {
  config::Config c;
  c.train.micro_batch_size = 1;
  c.train.seq_length = 8;
  c.train.step_batch_size_schedule = steps;
  c.train.train_iters = 30;
  c.optim.lr = 1e-2;
  c.optim.min_lr = 1e-4;
  c.optim.lr_decay_style = "linear";
  return c;
}

double rate_after(const config::Config& c, int64_t iterations) {
  const plan::MicrobatchSchedule schedule = step::microbatch_schedule(c, 2);
  return optim::LrSchedule(optim::schedule_args(step::in_samples(c, schedule)))
      .lr(step::samples_of(schedule, iterations));
}

// 10 iterations of 4, then 8: 200 samples in 30. (Thresholds are tokens: sample 40 is token 320.)
TEST(RunLength, SamplesOfIterationsFollowTheSteps) {
  const plan::MicrobatchSchedule schedule = step::microbatch_schedule(stepped("0:4 320:8"), 2);
  EXPECT_EQ(step::samples_of(schedule, 0), 0);
  EXPECT_EQ(step::samples_of(schedule, 10), 40);
  EXPECT_EQ(step::samples_of(schedule, 11), 48);
  EXPECT_EQ(step::samples_of(schedule, 30), 200);
}

// The run never reaches the last step; the decay still ends with the run.
TEST(RunLength, TheRateReachesItsLeastWithTheLastIterationWhateverTheSteps) {
  for (const char* steps : {"0:4", "0:4 320:8", "0:4 800:16", "0:4 800000:64"}) {
    SCOPED_TRACE(steps);
    config::Config c = stepped(steps);
    EXPECT_GT(rate_after(c, 29), c.optim.min_lr * 1.5);
    EXPECT_DOUBLE_EQ(rate_after(c, 30), c.optim.min_lr);
    c.optim.lr_decay_iters = 20;
    c.optim.lr_warmup_iters = 5;
    EXPECT_DOUBLE_EQ(rate_after(c, 5), c.optim.lr);
    EXPECT_LT(rate_after(c, 4), c.optim.lr);
    EXPECT_GT(rate_after(c, 19), c.optim.min_lr * 1.5);
    EXPECT_DOUBLE_EQ(rate_after(c, 20), c.optim.min_lr);
  }
}

TEST(RunLength, AStableRateDecaysOverItsLastIterations) {
  config::Config c = stepped("0:4 320:8");
  c.optim.lr_decay_style = "WSD";
  c.optim.lr_wsd_decay_style = "linear";
  c.optim.lr_wsd_decay_iters = 25;
  EXPECT_DOUBLE_EQ(rate_after(c, 5), c.optim.lr);
  EXPECT_LT(rate_after(c, 6), c.optim.lr);
  EXPECT_DOUBLE_EQ(rate_after(c, 30), c.optim.min_lr);
}

config::Config of_samples(int64_t samples) {
  config::Config c;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 8;
  c.train.train_samples = samples;
  return c;
}

step::RunLength length_of(const config::Config& c) { return step::run_length(c, step::microbatch_schedule(c, 2)); }

// Megatron's update_train_iters: train_samples // global_batch_size.
TEST(RunLength, SamplesRoundDownToWholeBatches) {
  EXPECT_EQ(length_of(of_samples(20)).iterations, 2);
  EXPECT_EQ(length_of(of_samples(20)).samples, 16);
  EXPECT_EQ(length_of(of_samples(24)).iterations, 3);
  EXPECT_THROW(length_of(of_samples(7)), base::Error);
}

// Batches of 2, 4, 6 and 8 over 24 samples, then 8: 2 * 4 + 4 * 2 + 6 * 2 = 28 samples in 8 steps.
TEST(RunLength, SamplesRoundDownAfterRampUp) {
  config::Config c = of_samples(0);
  c.train.rampup_batch_size = "2 2 24";
  for (const auto& [samples, iterations] :
       std::vector<std::pair<int64_t, int64_t>>{{28, 8}, {35, 8}, {36, 9}, {43, 9}}) {
    c.train.train_samples = samples;
    const plan::MicrobatchSchedule schedule = step::microbatch_schedule(c, 2);
    const step::RunLength length = step::run_length(c, schedule);
    EXPECT_EQ(length.iterations, iterations) << samples;
    EXPECT_LE(length.samples, samples);
    EXPECT_GT(length.samples + 8, samples);
    EXPECT_FALSE(step::more_steps(c.train, schedule, length.iterations, length.samples));
    EXPECT_EQ(step::samples_of(schedule, length.iterations), length.samples);
  }
}

// Megatron's loop over a step schedule runs while consumed samples < train_samples.
TEST(RunLength, StepScheduleEndsWithTheBatchThatReachesItsSamples) {
  config::Config c = stepped("0:4 320:8");
  c.train.train_iters = 0;
  c.train.train_samples = 50;
  EXPECT_EQ(length_of(c).iterations, 12);
  EXPECT_EQ(length_of(c).samples, 56);
}

TEST(RunLength, EvaluationHasItsOwnBatchSize) {
  config::Config c = of_samples(20);
  EXPECT_EQ(length_of(c).eval_batch_size, 8);
  c.train.eval_global_batch_size = 6;
  EXPECT_EQ(length_of(c).eval_batch_size, 6);
  EXPECT_EQ(length_of(c).full_batch_size, 8);
}

}  // namespace
}  // namespace metroplex::run
