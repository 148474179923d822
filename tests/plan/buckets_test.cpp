#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
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

// Numbers that Megatron's distributed optimizer lays out for the same parameters.
TEST(Buckets, PadForADistributedOptimizer) {
  const auto plan = plan_buckets(params({5000, 5000, 5000, 5000}, {3}), distributed_optimizer_buckets(8000, 2));
  EXPECT_EQ(plan.slots,
            (std::vector<BucketSlot>{{15232, 20232, 2}, {10176, 15176, 1}, {5120, 10120, 1}, {0, 5000, 0}}));
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[1].begin, 5120);
  EXPECT_EQ(plan.buckets[1].end, 15232);
  EXPECT_EQ(plan.buckets[1].num_unpadded, 10056);
  EXPECT_EQ(distributed_optimizer_buckets(0, 6).bucket_end_multiple, 384);
  EXPECT_EQ(distributed_optimizer_buckets(0, 96, true).bucket_end_multiple, 196608);
}

TEST(Buckets, CutIntoEqualShardsThatCoverThem) {
  const auto plan = plan_buckets(params({130, 70, 999, 64, 1}, {2}), distributed_optimizer_buckets(500, 6));
  for (const Bucket& bucket : plan.buckets) {
    int64_t next = bucket.begin;
    for (int64_t rank = 0; rank < 6; ++rank) {
      const auto [begin, end] = bucket_shard(bucket, 6, rank);
      EXPECT_EQ(begin, next);
      EXPECT_EQ((end - begin) % 64, 0);
      next = end;
    }
    EXPECT_EQ(next, bucket.end);
  }
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
  EXPECT_EQ(resolve_bucket_size({.dp = 8}), 40'000'000);
  EXPECT_EQ(resolve_bucket_size({.dp = 64}), 64'000'000);
  EXPECT_EQ(resolve_bucket_size({.num_buckets = 4, .num_parameters = 1'000'000}), 250'000);
  EXPECT_EQ(resolve_bucket_size({.bucket_size = 123}), 123);
  EXPECT_EQ(resolve_bucket_size({.bucket_size = 123, .overlap_grad_reduce = false}), std::nullopt);
  EXPECT_THROW(resolve_bucket_size({.num_buckets = 0}), base::Error);
}

}  // namespace
}  // namespace metroplex::plan::buckets_test
