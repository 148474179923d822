// The norm of a model sharded over tp 2 x pp 2 equals that of the whole model: sharded and replicated parameters
// count once, a shared one on its owner, and padding is not counted as zeros.
#include "optim/clip.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/optimizer_step.h"
#include "kernels/step_state_math.h"
#include "distributed/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::clip_ranks_test {
namespace {

constexpr int64_t kRows = 6, kWidth = 5, kVocab = 7, kPaddedVocab = 8;

// Whole tensors of stage `stage`, with a few exact zeros.
at::Tensor whole_matrix(int stage) {
  at::Tensor x = values({kRows, kWidth}, 10 + stage);
  x[1][2] = 0.0;
  x[5][4] = 0.0;
  return x;
}
at::Tensor whole_bias(int stage) {
  at::Tensor x = values({kRows}, 20 + stage);
  x[3] = 0.0;
  return x;
}
at::Tensor whole_embedding() {
  at::Tensor x = values({kVocab, kWidth}, 30);
  x[6][1] = 0.0;
  return x;
}

nn::Param make_sharded(const std::string& name, const at::Tensor& whole, int64_t padded_rows, int tp, int index) {
  const int64_t local = padded_rows / tp, begin = index * local, real = std::min(local, whole.size(0) - begin);
  at::Tensor data = at::zeros({local, whole.size(1)}, whole.options());
  data.narrow(0, 0, real).copy_(whole.narrow(0, begin, real));
  nn::Param param = make_param(name, data);
  param.global_shape = whole.sizes().vec();
  param.placement.cuts = {{0, topology::Axis::tp, {{0, begin, real}}, local}};
  return param;
}

// Parameters of one rank; the gradients equal the data.
std::vector<nn::Param> make_params(int tp, int tp_index, int pp, int pp_index) {
  std::vector<nn::Param> params;
  for (int stage = 0; stage < 2; ++stage) {
    if (stage * pp / 2 != pp_index) continue;
    params.push_back(make_sharded("matrix", whole_matrix(stage), kRows, tp, tp_index));
    params.push_back(make_param("bias", whole_bias(stage)));
  }
  if (pp_index == 0) params.push_back(make_sharded("embedding", whole_embedding(), kPaddedVocab, tp, tp_index));
  if (pp > 1 && pp_index == pp - 1) {
    params.push_back(make_sharded("embedding", whole_embedding(), kPaddedVocab, tp, tp_index));
    params.back().owner = false;
  }
  for (nn::Param& param : params) param.main_grad = param.data;
  return params;
}

optim::ModelRanks model_ranks(const comm::World& world) {
  return {world.coordinates(), world.groups().model_parallel, comm::Group(), {}};
}

double plain_norm() {
  double sum = whole_embedding().square().sum().item<double>();
  for (int stage = 0; stage < 2; ++stage) {
    sum += whole_matrix(stage).square().sum().item<double>() + whole_bias(stage).square().sum().item<double>();
  }
  return std::sqrt(sum);
}
constexpr int64_t kZeros = 2 * 2 + 2 * 1 + 1;

void check(int tp, int pp) {
  std::vector<optim::GradientStats> all(static_cast<size_t>(tp * pp));
  run_ranks(tp * pp, {.tp = tp, .pp = pp}, [&](const comm::World& world) {
    const comm::Groups& groups = world.groups();
    std::vector<nn::Param> params = make_params(tp, groups.tp.index(), pp, groups.pp.index());
    const auto slices = whole_shards(pointers(params));
    const auto stats = optim::gradient_stats({{slices, model_ranks(world)}});
    EXPECT_NEAR(stats.norm, plain_norm(), 1e-14 * plain_norm());
    EXPECT_EQ(stats.num_zeros, kZeros);
    EXPECT_EQ(stats.num_nonfinite, 0);
    EXPECT_NEAR(optim::params_norm({{slices, model_ranks(world)}}), plain_norm(), 1e-13);
    all[static_cast<size_t>(world.rank())] = stats;
  });
  for (const auto& stats : all) EXPECT_EQ(stats.norm, all[0].norm) << "ranks differ in the last bit";
}

TEST(GradientNorm, OfOneRankIsThePlainFormula) { check(1, 1); }
TEST(GradientNorm, CountsReplicatedParametersOnceOverTensorParallelRanks) { check(2, 1); }
TEST(GradientNorm, LeavesOutTheCopyOfASharedParameterThatIsNotTheOwner) { check(1, 2); }
TEST(GradientNorm, OfFourModelParallelRanksIsThatOfOne) { check(2, 2); }

TEST(GradientNorm, ANanOnOneRankReachesAllOfThem) {
  run_ranks(4, {.tp = 2, .pp = 2}, [&](const comm::World& world) {
    const comm::Groups& groups = world.groups();
    std::vector<nn::Param> params = make_params(2, groups.tp.index(), 2, groups.pp.index());
    if (world.rank() == 2) params[0].main_grad[0][0] = std::numeric_limits<double>::quiet_NaN();
    const auto slices = whole_shards(pointers(params));
    const auto stats = optim::gradient_stats({{slices, model_ranks(world)}});
    EXPECT_TRUE(std::isnan(stats.norm));
    EXPECT_EQ(stats.num_nonfinite, 1);
    EXPECT_EQ(optim::first_nonfinite(slices, {}) != nullptr, world.rank() == 2);
  });
}

// The norm covers parameters that count; otherwise a NaN in an uncounted copy would go unnoticed and its rank would
// continue.
TEST(GradientNorm, ANanInACopyThatDoesNotCountReachesAllOfThem) {
  run_ranks(2, {.tp = 2}, [&](const comm::World& world) {
    std::vector<nn::Param> params = make_params(2, world.groups().tp.index(), 1, 0);
    nn::Param& bias = params[1];
    if (!bias.counts(world.coordinates())) {
      bias.main_grad = bias.data.clone();
      bias.main_grad[0] = std::numeric_limits<double>::quiet_NaN();
    }
    EXPECT_EQ(bias.counts(world.coordinates()), world.rank() == 0);
    const auto slices = whole_shards(pointers(params));
    const auto stats = optim::gradient_stats({{slices, model_ranks(world)}});
    EXPECT_EQ(stats.num_nonfinite, 1);
    EXPECT_TRUE(std::isfinite(stats.norm));
  });
}

// Sums computed earlier replace the gradients, which are not read; the other gradients are. A parameter that does not
// count and padding have the same effect as without sums.
TEST(GradientNorm, SumsReplaceGradients) {
  run_ranks(2, {.tp = 2}, [&](const comm::World& world) {
    std::vector<nn::Param> params = make_params(2, world.groups().tp.index(), 1, 0);
    const auto slices = whole_shards(pointers(params));
    const auto want = optim::gradient_stats({{slices, model_ranks(world)}});
    std::vector<at::Tensor> sums(slices.size());
    for (size_t i = 0; i < slices.size(); i += 2) {  // both matrices, the embedding
      const at::Tensor& gradient = slices[i].gradient;
      const kernels::GradientSums one =
          kernels::gradient_sums(gradient.const_data_ptr(), kernels::Number::f64, gradient.numel());
      sums[i] = at::empty({1, 3}, at::kLong);
      std::memcpy(sums[i].mutable_data_ptr(), &one, sizeof(one));
      gradient.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const auto stats = optim::gradient_stats({{slices, model_ranks(world), sums}});
    EXPECT_EQ(stats.norm, want.norm);
    EXPECT_EQ(stats.num_zeros, kZeros);
    EXPECT_EQ(stats.num_nonfinite, 0);
  });
}

TEST(ClipCoefficient, IsTheLimitOverTheNormOnlyAboveTheLimit) {
  EXPECT_DOUBLE_EQ(kernels::clip_factor(2.0, 1.0), 0.499999750000125);
  EXPECT_DOUBLE_EQ(kernels::clip_factor(10.0, 0.1), 0.009999999000000101);
  EXPECT_DOUBLE_EQ(kernels::clip_factor(1.0000001, 1.0), 0.9999989000012101);
  EXPECT_EQ(kernels::clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(kernels::clip_factor(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace metroplex::test::clip_ranks_test
