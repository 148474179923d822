#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/microbatches.h"

namespace metroplex::plan::microbatches_test {
namespace {

TEST(Microbatches, OfAConstantBatchDivideIt) {
  EXPECT_EQ(MicrobatchSchedule::constant(1536, {1, 8}).at(0), (MicrobatchCount{192, 1536, 1536}));
  EXPECT_EQ(MicrobatchSchedule::constant(100, {3, 7, true}).at(12345), (MicrobatchCount{4, 100, 84}));
  EXPECT_THROW(MicrobatchSchedule::constant(32, {8, 3}), base::Error);
  EXPECT_THROW(MicrobatchSchedule::constant(8, {8, 2, true}), base::Error);
  EXPECT_THROW(MicrobatchSchedule::constant(8, {0, 2}), base::Error);
}

TEST(Microbatches, ChangeExactlyAtTheThresholdsOfASchedule) {
  const auto schedule = MicrobatchSchedule::steps("0:16,100:32 1K:64", 0, {2, 4});
  EXPECT_EQ(schedule.at(99).num_microbatches, 2);
  EXPECT_EQ(schedule.at(100).num_microbatches, 4);
  EXPECT_EQ(schedule.at(999).num_microbatches, 4);
  EXPECT_EQ(schedule.at(1'000'000'000).num_microbatches, 8);
}

TEST(Microbatches, TakeThresholdsInTokensWithASequenceLength) {
  const auto schedule = MicrobatchSchedule::steps("0:768 250B:1536", 4096, {1, 2});
  EXPECT_EQ(schedule.thresholds()[1].first, 61035156);
  EXPECT_EQ(schedule.at(61035155).global_batch_size, 768);
  EXPECT_EQ(schedule.at(61035156).global_batch_size, 1536);
}

TEST(Microbatches, RampUpInEqualShares) {
  const auto schedule = MicrobatchSchedule::rampup({16, 8, 96, 32}, {8, 1});
  EXPECT_EQ(schedule.at(0).global_batch_size, 16);
  EXPECT_EQ(schedule.at(47).global_batch_size, 16);
  EXPECT_EQ(schedule.at(48).global_batch_size, 24);
  EXPECT_EQ(schedule.at(96).global_batch_size, 32);
  EXPECT_EQ(schedule.at(1'000'000).global_batch_size, 32);
  EXPECT_THROW(MicrobatchSchedule::rampup({48, 16, 96, 32}, {8, 2}), base::Error);
  EXPECT_THROW(MicrobatchSchedule::rampup({16, 10, 96, 32}, {8, 2}), base::Error);
  EXPECT_THROW(MicrobatchSchedule::rampup({16, 16, 0, 32}, {8, 2}), base::Error);
}

TEST(Microbatches, AreRefusedWhereTheBatchDueDoesNotDivide) {
  const auto schedule = MicrobatchSchedule::rampup({16, 8, 96, 32}, {8, 2});
  EXPECT_NO_THROW(schedule.at(0));
  EXPECT_THROW(schedule.at(48), base::Error);
  EXPECT_EQ(schedule.at(48, false).num_microbatches, 1);
}

TEST(Microbatches, RefuseMalformedSchedules) {
  for (const char* bad : {"", " , ", "foo", "0", "0:", ":5", "0:1:2", "0:0", "0:-4", "-1:4", "0:4 0:8", "10:4",
                          "0:4x", "0:4KK", "0:nan", "0:inf", "0:1e300T", "0:4 1e400:8"}) {
    EXPECT_THROW(MicrobatchSchedule::steps(bad, 0, {1, 1}), base::Error) << bad;
  }
  EXPECT_THROW(MicrobatchSchedule::steps("0:4", 0, {1, 1, true}), base::Error);
}

}  // namespace
}  // namespace metroplex::plan::microbatches_test
