// How many samples iterations are under each schedule of batch sizes, and that a rate's decay ends with its
// iteration.
#include "train/run_length.h"

#include <gtest/gtest.h>

#include "optim/lr_schedule.h"

namespace metroplex::train {
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

// The rate after `iterations` of them.
double rate_after(const config::Config& c, int64_t iterations) {
  const plan::MicrobatchSchedule schedule = microbatch_schedule(c, 2);
  return optim::LrSchedule(optim::schedule_args(in_samples(c, schedule))).lr(samples_of(schedule, iterations));
}

// 10 iterations of 4, then 8: 200 samples in 30. (Thresholds are tokens: sample 40 is token 320.)
TEST(RunLength, SamplesOfIterationsFollowTheSteps) {
  const plan::MicrobatchSchedule schedule = microbatch_schedule(stepped("0:4 320:8"), 2);
  EXPECT_EQ(samples_of(schedule, 0), 0);
  EXPECT_EQ(samples_of(schedule, 10), 40);
  EXPECT_EQ(samples_of(schedule, 11), 48);
  EXPECT_EQ(samples_of(schedule, 30), 200);
}

// The last step is never reached: the decay ends with the run all the same.
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

}  // namespace
}  // namespace metroplex::train
