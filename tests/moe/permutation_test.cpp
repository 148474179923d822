#include "moe/permutation.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>
#include <random>
#include <vector>

namespace metroplex::moe::permutation_test {
namespace {

const device::Target kCpu;

// Distinct experts per token, some dropped.
at::Tensor random_experts(int64_t tokens, int64_t topk, int64_t num_experts, unsigned seed, bool drops) {
  std::mt19937 random(seed);
  const at::Tensor out = at::empty({tokens, topk}, at::kLong);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int64_t> all(static_cast<size_t>(num_experts));
    for (int64_t e = 0; e < num_experts; ++e) all[static_cast<size_t>(e)] = e;
    std::shuffle(all.begin(), all.end(), random);
    for (int64_t j = 0; j < topk; ++j) out[t][j] = drops && random() % 4 == 0 ? -1 : all[static_cast<size_t>(j)];
  }
  return out;
}

struct Case {
  int64_t tokens, topk, num_experts;
  bool drops;
};
const Case kCases[] = {{7, 2, 4, false}, {7, 2, 4, true},  {1, 1, 1, false},
                       {0, 2, 4, false}, {33, 8, 8, true}, {64, 3, 16, false}};

// The (expert, token) pairs in the order of their rows.
std::vector<std::pair<int64_t, int64_t>> sorted_pairs(const at::Tensor& experts, int64_t first, int64_t end) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t e = first; e < end; ++e) {
    for (int64_t t = 0; t < experts.size(0); ++t) {
      for (int64_t j = 0; j < experts.size(1); ++j) {
        if (experts[t][j].item<int64_t>() == e) pairs.emplace_back(e, t);
      }
    }
  }
  return pairs;
}

at::Tensor random(at::IntArrayRef sizes) { return at::rand(sizes, at::kDouble) + 0.1; }

// y with NaN in rows that must not be read.
at::Tensor poisoned(at::Tensor y, const at::Tensor& source) {
  y.masked_fill_(source.lt(0).unsqueeze(1), std::numeric_limits<double>::quiet_NaN());
  return y;
}

TEST(Permutation, RowsAreByExpertThenByToken) {
  for (const Case& test_case : kCases) {
    const at::Tensor experts =
        random_experts(test_case.tokens, test_case.topk, test_case.num_experts, 1, test_case.drops);
    const Permutation p =
        permutation(kCpu, experts, {.num_experts = test_case.num_experts, .num_rows = experts.numel()});
    const auto pairs = sorted_pairs(experts, 0, test_case.num_experts);
    ASSERT_EQ(p.source.numel(), experts.numel());
    for (int64_t r = 0; r < experts.numel(); ++r) {
      const auto source = p.source[r].item<int64_t>();
      if (r >= static_cast<int64_t>(pairs.size())) {
        EXPECT_EQ(source, -1);
        continue;
      }
      const auto [e, t] = pairs[static_cast<size_t>(r)];
      EXPECT_EQ(source / test_case.topk, t);
      EXPECT_EQ(experts.view(-1)[source].item<int64_t>(), e);
      EXPECT_EQ(p.rows.view(-1)[source].item<int64_t>(), r);
    }
    for (int64_t e = 0; e < test_case.num_experts; ++e)
      EXPECT_EQ(p.counts[e].item<int64_t>(), experts.eq(e).sum().item<int64_t>());
    EXPECT_EQ(p.rows.lt(0).sum().item<int64_t>(), experts.lt(0).sum().item<int64_t>());
  }
}

TEST(Permutation, ThereAndBackWithGradients) {
  for (const Case& test_case : kCases) {
    const int64_t width = 300;  // more than one block of columns of the sum
    const at::Tensor experts =
        random_experts(test_case.tokens, test_case.topk, test_case.num_experts, 2, test_case.drops);
    const int64_t room = experts.numel() + 5;
    const Permutation p = permutation(kCpu, experts, {.num_experts = test_case.num_experts, .num_rows = room});
    const at::Tensor x = random({test_case.tokens, width}).requires_grad_(),
                     probs = random({test_case.tokens, test_case.topk}).requires_grad_();
    const auto [rows, row_probs] = permute(kCpu, x, probs, p);
    const at::Tensor factor = random({room, 1});
    const at::Tensor y = poisoned((rows * row_probs.unsqueeze(1) * factor).detach(), p.source).requires_grad_();
    const at::Tensor out = unpermute(kCpu, y, p);

    const at::Tensor kept = experts.ge(0).to(at::kDouble);
    const at::Tensor scales = at::where(p.rows.ge(0), factor.view(-1).index({p.rows.clamp_min(0)}), 0.0);
    const at::Tensor weights = (probs.detach() * kept * scales).sum(1, true);
    EXPECT_TRUE(at::allclose(out, x.detach() * weights, 1e-13, 0)) << test_case.tokens;

    const at::Tensor dout = random({test_case.tokens, width});
    out.backward(dout);
    // The gradient of every valid row is that of its token.
    const at::Tensor dy = y.grad();
    for (int64_t r = 0; r < room; ++r) {
      const auto source = p.source[r].item<int64_t>();
      if (source < 0) continue;
      EXPECT_TRUE(at::equal(dy[r], dout[source / test_case.topk]));
    }
    rows.backward(poisoned(random({room, width}), p.source), true);
    row_probs.backward(poisoned(random({room, 1}), p.source).view(-1));
    EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
    EXPECT_TRUE(at::isfinite(probs.grad()).all().item<bool>());
    EXPECT_TRUE(at::equal(probs.grad().ne(0), experts.ge(0)));
  }
}

TEST(Permutation, SomeExpertsInChunksAndCopies) {
  const at::Tensor experts = random_experts(20, 3, 8, 3, true);
  // Only experts 2 to 5, in two chunks of two, each chunk twice.
  const PermuteHow how{.first = 2, .num_experts = 4, .chunk = 2, .copies = 2, .num_rows = 2 * 60};
  const Permutation p = permutation(kCpu, experts, how);
  int64_t row = 0;
  for (const int64_t chunk : {2, 4}) {
    const auto pairs = sorted_pairs(experts, chunk, chunk + 2);
    for (int64_t copy = 0; copy < 2; ++copy) {
      for (const auto& [e, t] : pairs) {
        const auto source = p.source[row].item<int64_t>();
        EXPECT_EQ(source / 3, t);
        EXPECT_EQ(p.rows[t][source % 3 * 2 + copy].item<int64_t>(), row);
        ++row;
      }
    }
  }
  EXPECT_TRUE(p.source.narrow(0, row, 120 - row).eq(-1).all().item<bool>());
  // A token's gradient is the sum over both copies.
  const at::Tensor x = random({20, 4}).requires_grad_();
  permute(kCpu, x, {}, p).x.backward(at::ones({120, 4}, at::kDouble));
  const at::Tensor here = experts.ge(2).logical_and(experts.lt(6)).sum(1).to(at::kDouble);
  EXPECT_TRUE(at::equal(x.grad(), (2 * here).unsqueeze(1).expand({20, 4})));
}

TEST(Permutation, CapacityGivesEveryExpertItsPlaces) {
  const at::Tensor experts = at::tensor({0, 2, 2, 0, 2, 1}, at::kLong).view({3, 2});
  const Permutation p = permutation(kCpu, experts, {.num_experts = 3, .capacity = 3, .num_rows = 9});
  EXPECT_TRUE(at::equal(p.source, at::tensor({0, 3, -1, 5, -1, -1, 1, 2, 4}, at::kLong)));
  EXPECT_TRUE(at::equal(p.counts, at::tensor({2, 1, 3}, at::kLong)));
}

TEST(Permutation, RegroupSortsByExpertOverAllRanks) {
  for (const int64_t capacity : {0, 5}) {
    const at::Tensor table = at::tensor({2, 0, 1, 1, 3, 0}, at::kLong).view({2, 3});  // 2 ranks, 3 experts
    const int64_t num_in = capacity > 0 ? 6 * capacity : 7;
    const Permutation permutation = regroup(kCpu, table, {capacity, num_in, num_in});
    std::vector<int64_t> expected;
    for (int64_t e = 0; e < 3; ++e) {
      int64_t start = 0;
      for (int64_t i = 0; i < 6; ++i) {
        const auto count = table.view(-1)[i].item<int64_t>();
        for (int64_t k = 0; k < count && i % 3 == e; ++k) expected.push_back(start + k);
        start += capacity > 0 ? capacity : count;
      }
    }
    for (size_t r = 0; r < expected.size(); ++r) {
      EXPECT_EQ(permutation.source[static_cast<int64_t>(r)].item<int64_t>(), expected[r]);
      EXPECT_EQ(permutation.rows[expected[r]][0].item<int64_t>(), static_cast<int64_t>(r));
    }
    EXPECT_EQ(permutation.source.ge(0).sum().item<int64_t>(), 7);
    EXPECT_EQ(permutation.rows.ge(0).sum().item<int64_t>(), 7);
    EXPECT_TRUE(at::equal(permutation.counts, at::tensor({3, 3, 1}, at::kLong)));
  }
}

// Sums of up to 8 terms in fp32, rounded once: half a unit in the last place of the type, and 8 of fp32.
TEST(Permutation, HalfTypesAreAddedInFp32) {
  for (const auto& [type, unit] : {std::pair{at::kBFloat16, 0x1p-8}, {at::kHalf, 0x1p-11}, {at::kFloat, 0x1p-24}}) {
    const at::Tensor experts = random_experts(33, 8, 16, 5, true);
    const Permutation p = permutation(kCpu, experts, {.num_experts = 16, .num_rows = experts.numel()});
    const at::Tensor y = random({experts.numel(), 70}).to(type);
    const at::Tensor got = unpermute(kCpu, y, p).to(at::kDouble), want = unpermute(kCpu, y.to(at::kDouble), p);
    EXPECT_LE((got - want).abs().max().item<double>(), want.max().item<double>() * (unit + 8 * 0x1p-24));
  }
}

TEST(Permutation, OneThreadAndTwoGiveTheSameBits) {
  const at::Tensor experts = random_experts(5000, 4, 32, 6, false);
  const Permutation p = permutation(kCpu, experts, {.num_experts = 32, .num_rows = experts.numel()});
  const at::Tensor y = random({experts.numel(), 64}).to(at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = unpermute(kCpu, y, p);
  at::set_num_threads(2);
  const at::Tensor two = unpermute(kCpu, y, p);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one, two));
}

}  // namespace
}  // namespace metroplex::moe::permutation_test
