// Number of samples of iterations for each schedule of batch sizes; the decay of a learning rate ends with its
// iteration.
#include "step/run_length.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/lr_schedule.h"

namespace metroplex::run {
namespace {

config::Config stepped(const std::string& steps) {
  config::Config config;
  config.train.micro_batch_size = 1;
  config.train.seq_length = 8;
  config.train.step_batch_size_schedule = steps;
  config.train.train_iters = 30;
  config.optim.lr = 1e-2;
  config.optim.min_lr = 1e-4;
  config.optim.lr_decay_style = "linear";
  return config;
}

double rate_after(const config::Config& config, int64_t iterations) {
  const plan::MicrobatchSchedule schedule = step::microbatch_schedule(config, 2);
  return optim::LrSchedule(optim::schedule_args(step::convert_to_samples(config, schedule)))
      .lr(step::count_samples(schedule, iterations));
}

// 10 iterations of 4, then 8: 200 samples in 30. (Thresholds are tokens: sample 40 is token 320.)
TEST(RunLength, SamplesOfIterationsFollowTheSteps) {
  const plan::MicrobatchSchedule schedule = step::microbatch_schedule(stepped("0:4 320:8"), 2);
  EXPECT_EQ(step::count_samples(schedule, 0), 0);
  EXPECT_EQ(step::count_samples(schedule, 10), 40);
  EXPECT_EQ(step::count_samples(schedule, 11), 48);
  EXPECT_EQ(step::count_samples(schedule, 30), 200);
}

// The run never reaches the last step; the decay still ends with the run.
TEST(RunLength, TheRateReachesItsLeastWithTheLastIterationWhateverTheSteps) {
  for (const char* steps : {"0:4", "0:4 320:8", "0:4 800:16", "0:4 800000:64"}) {
    SCOPED_TRACE(steps);
    config::Config config = stepped(steps);
    EXPECT_GT(rate_after(config, 29), config.optim.min_lr * 1.5);
    EXPECT_DOUBLE_EQ(rate_after(config, 30), config.optim.min_lr);
    config.optim.lr_decay_iters = 20;
    config.optim.lr_warmup_iters = 5;
    EXPECT_DOUBLE_EQ(rate_after(config, 5), config.optim.lr);
    EXPECT_LT(rate_after(config, 4), config.optim.lr);
    EXPECT_GT(rate_after(config, 19), config.optim.min_lr * 1.5);
    EXPECT_DOUBLE_EQ(rate_after(config, 20), config.optim.min_lr);
  }
}

TEST(RunLength, AStableRateDecaysOverItsLastIterations) {
  config::Config config = stepped("0:4 320:8");
  config.optim.lr_decay_style = "WSD";
  config.optim.lr_wsd_decay_style = "linear";
  config.optim.lr_wsd_decay_iters = 25;
  EXPECT_DOUBLE_EQ(rate_after(config, 5), config.optim.lr);
  EXPECT_LT(rate_after(config, 6), config.optim.lr);
  EXPECT_DOUBLE_EQ(rate_after(config, 30), config.optim.min_lr);
}

config::Config of_samples(int64_t samples) {
  config::Config config;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.train.train_samples = samples;
  return config;
}

step::RunLength get_length(const config::Config& config) {
  return step::run_length(config, step::microbatch_schedule(config, 2));
}

// Megatron's update_train_iters: train_samples // global_batch_size.
TEST(RunLength, SamplesRoundDownToWholeBatches) {
  EXPECT_EQ(get_length(of_samples(20)).iterations, 2);
  EXPECT_EQ(get_length(of_samples(20)).samples, 16);
  EXPECT_EQ(get_length(of_samples(24)).iterations, 3);
  EXPECT_THROW(get_length(of_samples(7)), base::Error);
}

// Batches of 2, 4, 6 and 8 over 24 samples, then 8: 2 * 4 + 4 * 2 + 6 * 2 = 28 samples in 8 steps.
TEST(RunLength, SamplesRoundDownAfterRampUp) {
  config::Config config = of_samples(0);
  config.train.rampup_batch_size = "2 2 24";
  for (const auto& [samples, iterations] :
       std::vector<std::pair<int64_t, int64_t>>{{28, 8}, {35, 8}, {36, 9}, {43, 9}}) {
    config.train.train_samples = samples;
    const plan::MicrobatchSchedule schedule = step::microbatch_schedule(config, 2);
    const step::RunLength length = step::run_length(config, schedule);
    EXPECT_EQ(length.iterations, iterations) << samples;
    EXPECT_LE(length.samples, samples);
    EXPECT_GT(length.samples + 8, samples);
    EXPECT_FALSE(step::has_more_steps(config.train, schedule, length.iterations, length.samples));
    EXPECT_EQ(step::count_samples(schedule, length.iterations), length.samples);
  }
}

// Megatron's loop over a step schedule runs while consumed samples < train_samples.
TEST(RunLength, StepScheduleEndsWithTheBatchThatReachesItsSamples) {
  config::Config config = stepped("0:4 320:8");
  config.train.train_iters = 0;
  config.train.train_samples = 50;
  EXPECT_EQ(get_length(config).iterations, 12);
  EXPECT_EQ(get_length(config).samples, 56);
}

TEST(RunLength, EvaluationHasItsOwnBatchSize) {
  config::Config config = of_samples(20);
  EXPECT_EQ(get_length(config).eval_batch_size, 8);
  config.train.eval_global_batch_size = 6;
  EXPECT_EQ(get_length(config).eval_batch_size, 6);
  EXPECT_EQ(get_length(config).full_batch_size, 8);
}

}  // namespace
}  // namespace metroplex::run
