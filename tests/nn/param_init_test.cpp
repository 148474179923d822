// Initial values of parameters sharded in several dims, in several ranges, with padding.
#include "nn/param_init.h"

#include "nn/tools.h"

namespace metroplex::test::param_init_test {
namespace {

using topology::Axis;

// A stack [4 experts, 6, 5]: this rank's two experts, one row of gate and one of up of each, padded to three rows.
nn::ParamSpec stack(int ep, int etp) {
  const topology::DimShard rows{1, Axis::etp, {{0, etp, 1}, {1, 3 + etp, 1}}, 3};
  return {"experts",
          {4, 6, 5},
          {.grid = topology::Grid::expert, .cuts = {topology::even_shard(0, Axis::ep, 4, 2, ep), rows}},
          nn::Init::normal};
}

TEST(ParamInit, APartCutInTwoDimsHasTheValuesOfTheWholeAndItsPaddingIsZero) {
  const nn::Param whole = nn::make_param({"experts", {4, 6, 5}, {}, nn::Init::normal}, layer_context());
  for (const int ep : {0, 1}) {
    for (const int etp : {0, 1, 2}) {
      const nn::Param part = nn::make_param(stack(ep, etp), layer_context());
      ASSERT_EQ(part.local_shape, (std::vector<int64_t>{2, 3, 5}));
      EXPECT_EQ(part.numel(), 30);
      EXPECT_EQ(part.padding_numel(), 10);
      const at::Tensor experts = whole.data.narrow(0, 2 * ep, 2);
      EXPECT_TRUE(at::equal(part.data.select(1, 0), experts.select(1, etp)));
      EXPECT_TRUE(at::equal(part.data.select(1, 1), experts.select(1, 3 + etp)));
      EXPECT_EQ(largest(part.data.select(1, 2)), 0);
    }
  }
}

TEST(ParamInit, FillGivesEveryElementTheIndexItHasInTheWhole) {
  nn::Param part = nn::make_param(stack(1, 2), layer_context());
  nn::fill(part, [](int64_t index) { return static_cast<double>(index); });
  const at::Tensor whole = at::arange(4 * 6 * 5, at::kDouble).view({4, 6, 5});
  EXPECT_TRUE(at::equal(part.data.select(1, 0), whole.narrow(0, 2, 2).select(1, 2)));
  EXPECT_TRUE(at::equal(part.data.select(1, 1), whole.narrow(0, 2, 2).select(1, 5)));
  EXPECT_EQ(largest(part.data.select(1, 2)), 0);
}

// The sample deviation of n normal numbers has a relative standard error of 1 / sqrt(2 n); the test allows five.
TEST(ParamInit, ScaledNormalDividesByTheRootOfTwiceTheLayers) {
  nn::LayerContext context = layer_context();
  context.num_layers = 8;
  const double expected = context.init_std / 4, n = 64 * 64;
  const nn::Param param = nn::make_param({"proj", {64, 64}, {}, nn::Init::scaled_normal}, context);
  EXPECT_NEAR(param.data.std().item<double>() / expected, 1, 5 / std::sqrt(2 * n));
}

TEST(ParamInit, WithoutADeviationNothingIsDrawnAndWeightsOfNormsStayOne) {
  nn::LayerContext context = layer_context();
  context.streams = nn::make_init_streams(nn::rng_seeds(7, nn::RngRanks{}));
  const at::Generator before = context.streams->expert_parallel.clone();
  context.init_std = 0;
  for (const nn::Init init : {nn::Init::normal, nn::Init::scaled_normal}) {
    nn::ParamSpec spec = stack(0, 0);
    spec.init = init;
    EXPECT_EQ(largest(nn::make_param(spec, context).data), 0);
  }
  EXPECT_TRUE(at::equal(before.get_state(), context.streams->expert_parallel.get_state()));
  EXPECT_EQ(nn::make_param({"norm", {4}, {}, nn::Init::ones}, context).data.sum().item<double>(), 4);
}

TEST(ParamInit, ShardedInitialisationDrawsExpertsFromAStreamOfTheExpertPlace) {
  const auto drawn = [](const nn::ParamSpec& spec, const nn::RngRanks& ranks) {
    nn::LayerContext context = layer_context();
    context.streams = nn::make_init_streams(nn::rng_seeds(7, ranks));
    return nn::make_param(spec, context).data;
  };
  const nn::ParamSpec dense{"w", {4, 6}, {.cuts = {topology::even_shard(0, Axis::tp, 4, 2, 0)}}, nn::Init::normal};
  const nn::RngRanks first{.ep_rank = 0}, other{.ep_rank = 1}, other_tp{.tp_rank = 1};
  EXPECT_FALSE(at::equal(drawn(stack(0, 0), first), drawn(stack(0, 0), other))) << "two places drew equal experts";
  EXPECT_TRUE(at::equal(drawn(stack(0, 0), first), drawn(stack(0, 0), other_tp)));
  EXPECT_TRUE(at::equal(drawn(dense, first), drawn(dense, other)));
  EXPECT_FALSE(at::equal(drawn(dense, first), drawn(dense, other_tp)));
  const at::Tensor padded = drawn(stack(0, 0), first);
  EXPECT_EQ(largest(padded.select(1, 2)), 0);
  EXPECT_GT(largest(padded.select(1, 1)), 0);
}

}  // namespace
}  // namespace metroplex::test::param_init_test
