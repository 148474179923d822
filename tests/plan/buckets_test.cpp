#include <gtest/gtest.h>

#include <algorithm>

#include "config/parallel.h"
#include "plan/buckets.h"

namespace metroplex::plan::buckets_test {
namespace {

std::vector<BucketParam> params(std::vector<int64_t> sizes, std::vector<size_t> shared = {}) {
  std::vector<BucketParam> result;
  for (const int64_t size : sizes) result.push_back({size, false});
  for (const size_t index : shared) result[index].shared_embedding = true;
  return result;
}

TEST(Buckets, LayParametersOutInReverseAndCloseWhenFull) {
  const auto plan = plan_buckets(params({5000, 5000, 5000}), {.bucket_size = 8000});
  EXPECT_EQ(plan.slots, (std::vector<BucketSlot>{{10000, 15000, 1}, {5000, 10000, 0}, {0, 5000, 0}}));
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].params, (std::vector<int>{2, 1}));
  EXPECT_EQ(plan.buckets[1].begin, 10000);
  EXPECT_EQ(plan.num_elements, 15000);
}

TEST(Buckets, CloseAtExactlyTheirSize) {
  const auto plan = plan_buckets(params({3000, 3000, 5000}), {.bucket_size = 8000});
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].params, (std::vector<int>{2, 1}));
  EXPECT_EQ(plan.buckets[1].params, (std::vector<int>{0}));
}

TEST(Buckets, AreOneWithoutASize) {
  const auto plan = plan_buckets(params({10, 20, 30}), {});
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].end, 60);
  EXPECT_TRUE(plan_buckets({}, {}).buckets.empty());
}

// Positions that Megatron's distributed optimizer computes for the same parameters.
TEST(Buckets, PadForADistributedOptimizer) {
  const auto plan = plan_buckets(params({5000, 5000, 5000, 5000}, {3}), distributed_optimizer_buckets(8000, 2));
  EXPECT_EQ(plan.slots,
            (std::vector<BucketSlot>{{15232, 20232, 2}, {10176, 15176, 1}, {5120, 10120, 1}, {0, 5000, 0}}));
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[1].begin, 5120);
  EXPECT_EQ(plan.buckets[1].end, 15232);
  EXPECT_EQ(plan.buckets[1].num_unpadded, 10056);
  EXPECT_EQ(distributed_optimizer_buckets(0, 6).bucket_end_multiple, 384);
}

TEST(Buckets, CutIntoEqualSharesAtMultiplesOf64) {
  const auto plan = plan_buckets(params({130, 70, 999, 64, 1}, {2}), distributed_optimizer_buckets(500, 6));
  for (const Bucket& bucket : plan.buckets) EXPECT_EQ((bucket.end - bucket.begin) % (6 * 64), 0);
}

TEST(Buckets, HoldEveryParameterOnceWithoutOverlapForAnySizes) {
  for (int seed = 1; seed < 60; ++seed) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < 1 + seed % 13; ++i) sizes.push_back((seed * 7919 + i * 104729) % 3000);
    const auto options = seed % 2 ? distributed_optimizer_buckets(seed * 37, 1 + seed % 5) : BucketOptions{seed * 37};
    const auto plan = plan_buckets(params(sizes, {sizes.size() / 2}), options);
    int64_t next = 0;
    size_t held = 0;
    for (const Bucket& bucket : plan.buckets) {
      EXPECT_EQ(bucket.begin, next);
      next = bucket.end;
      int64_t at = bucket.begin;
      for (const int index : bucket.params) {
        const BucketSlot& slot = plan.slots[static_cast<size_t>(index)];
        EXPECT_GE(slot.begin, at);
        EXPECT_EQ(slot.end - slot.begin, sizes[static_cast<size_t>(index)]);
        at = slot.end;
        ++held;
      }
      EXPECT_LE(at, bucket.begin + bucket.num_unpadded);
      EXPECT_LE(bucket.begin + bucket.num_unpadded, bucket.end);
    }
    EXPECT_EQ(held, sizes.size());
    EXPECT_EQ(next, plan.num_elements);
  }
}

TEST(BucketSize, FollowsTheRuleOfTheDefaults) {
  config::Parallel parallel;
  parallel.overlap_grad_reduce = true;
  EXPECT_EQ(gradient_bucket_size(parallel, {}, 8), 40'000'000);
  EXPECT_EQ(gradient_bucket_size(parallel, {}, 64), 64'000'000);
  parallel.ddp_bucket_size = 123;
  EXPECT_EQ(gradient_bucket_size(parallel, {}, 8), 123);
  parallel.overlap_grad_reduce = false;
  EXPECT_EQ(gradient_bucket_size(parallel, {}, 8), 0);
}

}  // namespace
}  // namespace metroplex::plan::buckets_test
