#include "plan/buckets.h"

#include <gtest/gtest.h>

namespace metroplex::test::filling_buckets_test {
namespace {

// Bucket 0 holds parameters 0 and 1, bucket 1 parameter 2, which two segments use.
plan::FillingBuckets two_buckets(bool overlap) { return {{{0, 1}, {2}}, {1, 1, 2}, overlap}; }

TEST(FillingBuckets, OneIsThereFromItsFirstGradientToItsLast) {
  plan::FillingBuckets buckets = two_buckets(false);
  EXPECT_FALSE(buckets.filling(0));
  EXPECT_EQ(buckets.open(1), 0u);
  EXPECT_EQ(buckets.open(0), std::nullopt) << "it is there already";
  EXPECT_EQ(buckets.use(1), std::nullopt);
  EXPECT_TRUE(buckets.filling(0));
  EXPECT_EQ(buckets.use(0), 0u);
  EXPECT_FALSE(buckets.filling(0));
  EXPECT_EQ(buckets.leaving(), std::nullopt);
  EXPECT_EQ(buckets.open(2), 1u);
  EXPECT_EQ(buckets.use(2), std::nullopt);
  EXPECT_EQ(buckets.use(2), 1u) << "the second use of two";
}

TEST(FillingBuckets, WithOverlapOneLeavesUntilTheNextDoes) {
  plan::FillingBuckets buckets = two_buckets(true);
  for (const size_t param : {size_t{2}, size_t{2}}) {
    buckets.open(param);
    buckets.use(param);
  }
  EXPECT_EQ(buckets.leaving(), 1u);
  buckets.open(0);
  EXPECT_EQ(buckets.leaving(), 1u);
  buckets.use(0);
  buckets.open(1);
  EXPECT_EQ(buckets.use(1), 0u);
  EXPECT_EQ(buckets.leaving(), 0u);
}

TEST(FillingBuckets, OfAStepOneIsFullWithTheGradientsOfAllMicrobatches) {
  plan::FillingBuckets buckets = two_buckets(true);
  buckets.begin(3);
  for (int m = 0; m < 2; ++m) {
    EXPECT_EQ(buckets.use(0), std::nullopt);
    EXPECT_EQ(buckets.use(1), std::nullopt);
  }
  EXPECT_EQ(buckets.use(0), std::nullopt);
  EXPECT_EQ(buckets.use(1), 0u);
}

}  // namespace
}  // namespace metroplex::test::filling_buckets_test
