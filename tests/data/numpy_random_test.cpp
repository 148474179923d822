#include "data/numpy_random.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"

namespace metroplex::data::numpy_random_test {
namespace {

// Values printed by numpy 2.4 and torch 2.11.
TEST(NumpyRandom, ShufflesAsRandomStateDoes) {
  RandomState random(42);
  std::vector<int> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  random.shuffle(values);
  EXPECT_EQ(values, (std::vector<int>{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}));
  EXPECT_EQ(random.next_u32(), 669991378u);
}

TEST(NumpyRandom, DrawsBoundedIntegersAsDefaultRngDoes) {
  EXPECT_EQ(DefaultRng(0).integers(1, 4096, 5), (std::vector<int32_t>{3484, 2609, 2094, 1105, 1261}));
  EXPECT_EQ(DefaultRng(1234).integers(1, 4096, 4), (std::vector<int32_t>{4011, 4000, 4046, 1557}));
}

TEST(NumpyRandom, SeedsDefaultRngWithSixtyFourBits) {
  DefaultRng random(123456789012345678u);
  EXPECT_EQ(random.next_u64(), 498569118454531373u);
  EXPECT_EQ(random.next_u64(), 15057867900059626700u);
}

TEST(NumpyRandom, DrawsAFullRangeWithoutRejectingForever) {
  const auto values = DefaultRng(5).integers(-2147483647 - 1, 2147483647, 1000);
  EXPECT_LT(*std::min_element(values.begin(), values.end()), -2000000000);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 2000000000);
}

TEST(NumpyRandom, RefusesAnEmptyRange) { EXPECT_THROW(DefaultRng(0).integers(3, 3, 1), base::Error); }

TEST(NumpyRandom, GivesAnOnlyValueWithoutDrawing) {
  DefaultRng random(0), untouched(0);
  EXPECT_EQ(random.integers(7, 8, 3), (std::vector<int32_t>{7, 7, 7}));
  EXPECT_EQ(random.next_u64(), untouched.next_u64());
}

TEST(NumpyRandom, StaysInsideWideIntervals) {
  RandomState random(1);
  for (int i = 0; i < 1000; ++i) EXPECT_LE(random.interval(uint64_t{5} << 32), uint64_t{5} << 32);
}

TEST(NumpyRandom, PermutesAsTorchDoes) {
  EXPECT_EQ(torch_randperm(10, 0), (std::vector<int64_t>{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(torch_randperm(0, 0), std::vector<int64_t>{});
}

}  // namespace
}  // namespace metroplex::data::numpy_random_test
