// The meter of a rank's load: values that layers wrote since the last read.
#include "moe/load_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace metroplex::moe::load_meter_test {
namespace {

TEST(LoadMeter, SumsTokensAndDropsOfEachLayer) {
  LoadMeter meter(4, {});
  meter.count(3, at::tensor({0, 2, 2, -1, 1, 2}, at::kLong).view({3, 2}));
  meter.count(3, at::tensor({-1, -1}, at::kLong).view({1, 2}));
  meter.count(1, at::tensor({3, 0}, at::kLong).view({1, 2}));
  ASSERT_EQ(meter.layers().size(), 2U);
  EXPECT_TRUE(meter.layer(3).tokens.equal(at::tensor({1, 1, 3, 0}, at::kLong)));
  EXPECT_EQ(meter.layer(3).dropped.item<int64_t>(), 3);
  EXPECT_TRUE(meter.layer(3).counts.equal(at::tensor({1, 1, 3, 0, 3}, at::kLong)));
  EXPECT_TRUE(meter.layer(1).tokens.equal(at::tensor({1, 0, 0, 1}, at::kLong)));
  EXPECT_EQ(meter.layer(1).dropped.item<int64_t>(), 0);
  meter.layer(1).dispatch_ms = 2;
  meter.reset_times();
  EXPECT_EQ(meter.layer(1).dispatch_ms, 0);
}

// Two plans of two ranks: loads of 6 and 2 become even, then 3 and 1 become 1 and 3.
TEST(LoadMeter, SumsWhatPlansOfClonesMake) {
  LoadMeter meter(4, {});
  EXPECT_FALSE(meter.layer(3).replicas.defined());
  const auto count = [&](std::initializer_list<int> owners, std::initializer_list<int64_t> loads) {
    ReplicaPlan plan;
    plan.owners = at::tensor(owners, at::kInt);
    plan.loads = at::tensor(loads, at::kLong).view({2, 2});
    meter.count_replicas(3, plan);
  };
  const auto expect = [&](std::initializer_list<double> numbers) {
    EXPECT_TRUE(meter.layer(3).replicas.equal(at::tensor(numbers, at::kDouble))) << meter.layer(3).replicas;
  };
  count({-1, 0, -1, 1}, {6, 2, 4, 4});
  expect({1, 2, 1.5, 1, 1});
  count({-1, -1, 3, -1}, {3, 1, 1, 3});
  expect({2, 3, 3, 2.5, 1.5});
  count({-1, -1, -1, -1}, {0, 0, 0, 0});  // no rank waits for another
  expect({3, 3, 4, 3.5, 1.5});
  count({-1, -1, -1, -1}, {8, 0, 8, 0});
  expect({4, 3, 6, 5.5, 2});
  meter.layer(3).replicas_ms = 2;
  meter.reset_times();
  EXPECT_EQ(meter.layer(3).replicas_ms, 0);
}

TEST(LoadMeter, CountsWithoutValues) {
  device::Target target;
  target.meta = true;
  LoadMeter meter(4, target);
  meter.count(0, at::empty({5, 2}, at::TensorOptions().dtype(at::kLong).device(at::kMeta)));
  EXPECT_TRUE(meter.layer(0).tokens.is_meta());
}

}  // namespace
}  // namespace metroplex::moe::load_meter_test
