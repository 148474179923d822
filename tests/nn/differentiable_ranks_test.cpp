// Every pair of forward and backward against the unsharded computation with autograd, in float64. Sums of up to four
// terms use another order: 1e-14 relative is some tens of rounding errors.
#include "nn/differentiable.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "comm/collectives.h"
#include "support/run_ranks.h"

namespace metroplex::test::differentiable_ranks_test {
namespace {

using comm::Group;
using comm::World;

at::Tensor leaf(const at::Tensor& values) { return values.detach().clone().requires_grad_(true); }

at::Tensor values(int64_t seed, at::IntArrayRef shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::sin(at::arange(numel, at::kDouble) * 0.37 + static_cast<double>(seed)).reshape(shape);
}

at::Tensor gradient(const at::Tensor& out, const at::Tensor& weight, const at::Tensor& input) {
  return torch::autograd::grad({(out * weight).sum()}, {input})[0];
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(actual, expected, 1e-14, 1e-14)) << (actual - expected).abs().max().item<double>();
}

constexpr int kRanks = 4;
const std::vector<int64_t> kShape{8, 3, 12};

TEST(Differentiable, CopyToGroupAddsUpTheGradientsOfAllUses) {
  run_ranks(kRanks, [](const World& world) {
    const Group& tp = world.groups().tp;
    const at::Tensor x = leaf(values(0, kShape));
    const at::Tensor y = copy_to_group(x, tp);
    EXPECT_TRUE(at::equal(y, x));
    at::Tensor weight = at::zeros(kShape, at::kDouble);
    for (int i = 0; i < kRanks; ++i) weight += values(100 + i, kShape);
    expect_close(gradient(y, values(100 + tp.index(), kShape), x), weight);
  });
}

TEST(Differentiable, ReduceFromGroupSumsAndPassesTheGradientOn) {
  run_ranks(kRanks, [](const World& world) {
    const Group& tp = world.groups().tp;
    const at::Tensor x = leaf(values(tp.index(), kShape));
    const at::Tensor y = reduce_from_group(x, tp);
    at::Tensor sum = at::zeros(kShape, at::kDouble);
    for (int i = 0; i < kRanks; ++i) sum += values(i, kShape);
    expect_close(y.detach(), sum);
    EXPECT_TRUE(at::equal(x, values(tp.index(), kShape))) << "the input was changed";
    EXPECT_TRUE(at::equal(gradient(y, values(9, kShape), x), values(9, kShape)));
  });
}

TEST(Differentiable, ScatterAndGatherAreEachOthersGradient) {
  run_ranks(kRanks, [](const World& world) {
    const Group& tp = world.groups().tp;
    for (const int64_t dim : {0, -1}) {
      const at::Tensor whole = values(1, kShape);
      const at::Tensor x = leaf(whole);
      const at::Tensor slice = scatter_to_group(x, dim, tp);
      EXPECT_TRUE(at::equal(slice, select_shard(whole, dim, tp)));
      EXPECT_TRUE(slice.is_contiguous());
      const at::Tensor weight = values(2, kShape);
      EXPECT_TRUE(at::equal(gradient(slice, select_shard(weight, dim, tp), x), weight));

      const at::Tensor part = leaf(select_shard(whole, dim, tp));
      const at::Tensor gathered = gather_from_group(part, dim, tp);
      EXPECT_TRUE(at::equal(gathered, whole));
      EXPECT_TRUE(at::equal(gradient(gathered, weight, part), select_shard(weight, dim, tp)));
    }
  });
}

TEST(Differentiable, SequenceGatherAddsUpTheGradientsOfAllUses) {
  run_ranks(kRanks, [](const World& world) {
    const Group& tp = world.groups().tp;
    const at::Tensor whole = values(3, kShape);
    const at::Tensor part = leaf(select_shard(whole, 0, tp));
    const at::Tensor gathered = gather_from_sequence(part, 0, tp);
    EXPECT_TRUE(at::equal(gathered, whole));
    at::Tensor weight = at::zeros(kShape, at::kDouble);
    for (int i = 0; i < kRanks; ++i) weight += values(200 + i, kShape);
    expect_close(gradient(gathered, values(200 + tp.index(), kShape), part), select_shard(weight, 0, tp));
  });
}

TEST(Differentiable, ReduceScatterGathersTheGradient) {
  run_ranks(kRanks, [](const World& world) {
    const Group& tp = world.groups().tp;
    for (const int64_t dim : {0, 2}) {
      const at::Tensor x = leaf(values(tp.index(), kShape));
      const at::Tensor y = reduce_scatter_to_group(x, dim, tp);
      at::Tensor sum = at::zeros(kShape, at::kDouble);
      for (int i = 0; i < kRanks; ++i) sum += values(i, kShape);
      expect_close(y.detach(), select_shard(sum, dim, tp));
      const at::Tensor weight = values(5, kShape);
      EXPECT_TRUE(at::equal(gradient(y, select_shard(weight, dim, tp), x), weight));
    }
  });
}

TEST(Differentiable, AllToAllSendsGradientsBackToWhereTheRowsCameFrom) {
  run_ranks(3, [](const World& world) {
    const Group& tp = world.groups().tp;
    const int me = tp.index();
    std::vector<int64_t> in_splits, out_splits;
    std::vector<at::Tensor> sent, weights_there, weights_here;
    for (int j = 0; j < 3; ++j) {
      in_splits.push_back((2 * me + j) % 3 + (me == j ? 0 : 1));
      out_splits.push_back((2 * j + me) % 3 + (me == j ? 0 : 1));
      weights_here.push_back(values(10 * j + me, {out_splits.back(), 4}));  // of the rows from j
      weights_there.push_back(values(10 * me + j, {in_splits.back(), 4}));  // applied by j to this rank's rows
      sent.push_back(values(50 + 10 * me + j, {in_splits.back(), 4}));
    }
    const at::Tensor x = leaf(at::cat(sent));
    const at::Tensor y = all_to_all_rows(x, out_splits, in_splits, tp);
    std::vector<at::Tensor> expected;
    for (int j = 0; j < 3; ++j) expected.push_back(values(50 + 10 * j + me, {out_splits[static_cast<size_t>(j)], 4}));
    EXPECT_TRUE(at::equal(y, at::cat(expected)));
    EXPECT_TRUE(at::equal(gradient(y, at::cat(weights_here), x), at::cat(weights_there)));
  });
}

// A column-parallel and a row-parallel matmul around a nonlinearity, sequence parallel outside: against one rank.
TEST(Differentiable, ComposeToAShardedMlpWithTheGradientsOfTheUnshardedOne) {
  const at::Tensor x0 = values(1, {8, 6}), a0 = values(2, {6, 12}), b0 = values(3, {12, 6}),
                   weight = values(4, {8, 6});
  const at::Tensor x = leaf(x0), a = leaf(a0), b = leaf(b0);
  const at::Tensor y = at::tanh(x.matmul(a)).matmul(b);
  const auto expected = torch::autograd::grad({(y * weight).sum()}, {x, a, b});
  run_ranks(kRanks, [&](const World& world) {
    const Group& tp = world.groups().tp;
    const at::Tensor x_part = leaf(select_shard(x0, 0, tp)), a_part = leaf(select_shard(a0, 1, tp)),
                     b_part = leaf(select_shard(b0, 0, tp));
    const at::Tensor hidden = at::tanh(gather_from_sequence(x_part, 0, tp).matmul(a_part));
    const at::Tensor out = reduce_scatter_to_group(hidden.matmul(b_part), 0, tp);
    const auto actual = torch::autograd::grad({(out * select_shard(weight, 0, tp)).sum()}, {x_part, a_part, b_part});
    EXPECT_TRUE(at::allclose(out, select_shard(y, 0, tp), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(actual[0], select_shard(expected[0], 0, tp), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(actual[1], select_shard(expected[1], 1, tp), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(actual[2], select_shard(expected[2], 0, tp), 1e-13, 1e-13));
  });
}

TEST(Differentiable, AGroupOfOneAndGradModeOffAddNothingToTheGraph) {
  const at::Tensor x = leaf(values(0, {2, 2}));
  EXPECT_TRUE(reduce_from_group(x, Group()).is_same(x));
  run_ranks(2, [](const World& world) {
    const at::Tensor part = leaf(values(0, {2, 2}));
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(reduce_from_group(part, world.groups().tp).requires_grad());
  });
}

}  // namespace
}  // namespace metroplex::test::differentiable_ranks_test
