// Assigns tokens to experts so that given counts result.
#include "moe/forced.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "moe/routing.h"
#include "moe/dense_routing.h"

namespace metroplex::test::deal_out_test {
namespace {

using Counts = std::vector<int64_t>;

at::Tensor tensor(const Counts& counts) { return at::tensor(counts, at::kLong); }

void expect_dealt(const Counts& counts, int64_t tokens, int64_t k) {
  const at::Tensor experts = moe::deal_out(tensor(counts), tokens, k);
  ASSERT_EQ(experts.sizes(), (std::vector<int64_t>{tokens, k}));
  EXPECT_TRUE(moe::tokens_per_expert(experts, static_cast<int64_t>(counts.size())).equal(tensor(counts)));
  EXPECT_EQ(moe::dense_map(experts, static_cast<int64_t>(counts.size())).sum().item<int64_t>(), tokens * k)
      << "an expert comes twice";
}

TEST(DealOut, EveryExpertGetsItsCountAndNoTokenOneExpertTwice) {
  for (uint64_t round = 0; round < 200; ++round) {
    const base::PhiloxBlock bits = base::philox4x32(7, round, 0);
    const int64_t experts = 1 + bits[0] % 20, k = 1 + bits[1] % experts, tokens = 1 + bits[2] % 50;
    Counts loads;
    for (int64_t e = 0; e < experts; ++e) {
      const base::PhiloxBlock load = base::philox4x32(8, round, static_cast<uint64_t>(e));
      loads.push_back(load[0] % 4 == 0 ? 0 : load[1] % (load[2] % 3 == 0 ? 1000000 : 20));
    }
    const Counts counts = moe::dealt_counts(loads, tokens, k);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), tokens * k);
    EXPECT_LE(*std::max_element(counts.begin(), counts.end()), tokens);
    expect_dealt(counts, tokens, k);
    for (size_t a = 0; a < loads.size(); ++a) {
      for (size_t b = 0; b < loads.size(); ++b) { EXPECT_TRUE(loads[a] <= loads[b] || counts[a] >= counts[b]); }
    }
  }
}

TEST(DealOut, LoadsThatFitComeOutAsTheyAreAndOthersInProportion) {
  EXPECT_EQ(moe::dealt_counts({5, 0, 1, 4}, 5, 2), (Counts{5, 0, 1, 4}));
  EXPECT_EQ(moe::dealt_counts({40, 0, 20, 20}, 4, 2), (Counts{4, 0, 2, 2}));
  // 16 / 7 = 2.29, 4.57, 9.14: the largest remainder gets the rest.
  EXPECT_EQ(moe::dealt_counts({1, 2, 4}, 16, 1), (Counts{2, 5, 9}));
  EXPECT_EQ(moe::dealt_counts({1, 1, 1}, 2, 1), (Counts{1, 1, 0}));
  // The first expert's quota is 7.2 of 8 but there are 4 tokens; the others share the other 4.
  EXPECT_EQ(moe::dealt_counts({9, 1, 0}, 4, 2), (Counts{4, 4, 0}));
  EXPECT_EQ(moe::dealt_counts({9, 0, 0}, 4, 2), (Counts{4, 2, 2}));
  EXPECT_EQ(moe::dealt_counts({0, 0}, 3, 1), (Counts{2, 1}));
}

TEST(DealOut, TokensTakePlacesOneRoundAfterTheOther) {
  const at::Tensor wanted = at::tensor({0, 1, 0, 1, 1, 3}, at::kLong).view({3, 2});
  EXPECT_TRUE(moe::deal_out(tensor({2, 3, 0, 1}), 3, 2).equal(wanted));
  const at::Tensor counts = at::empty({4}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
  EXPECT_EQ(moe::deal_out(counts, 3, 2).sizes(), (std::vector<int64_t>{3, 2}));
}

}  // namespace
}  // namespace metroplex::test::deal_out_test
