// The nearest semi-orthogonal matrix, and which parameters get it.
#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "distributed/tools.h"
#include "optim/judged.h"

namespace metroplex::test::muon_test {
namespace {

// The iteration's own promise: singular values end between 0.68 and 1.13, singular vectors stay.
TEST(NewtonSchulz, MovesSingularValuesTowardsOneAndKeepsSingularVectors) {
  for (const auto& shape : {std::vector<int64_t>{6, 6}, {4, 9}, {12, 5}}) {
    const at::Tensor x = values(shape, 7);
    const at::Tensor y = optim::newton_schulz(x, 5);
    ASSERT_EQ(y.sizes(), x.sizes());
    const auto [u, s, v] = at::svd(x);
    const at::Tensor inside = at::mm(at::mm(u.t(), y), v);
    const at::Tensor diagonal = inside.diagonal();
    for (int64_t i = 0; i < s.numel(); ++i) {
      if (s[i].item<double>() < 0.02 * s[0].item<double>()) continue;  // five steps do not reach the smallest
      EXPECT_GT(diagonal[i].item<double>(), 0.6);
      EXPECT_LT(diagonal[i].item<double>(), 1.3);
    }
    EXPECT_LT((inside - at::diag(diagonal)).abs().max().item<double>(), 1e-9) << "other vectors";
  }
}

TEST(NewtonSchulz, OfATransposedMatrixIsTheTransposed) {
  const at::Tensor x = values({5, 8}, 3);
  EXPECT_LT((optim::newton_schulz(x.t().contiguous(), 5) - optim::newton_schulz(x, 5).t()).abs().max().item<double>(),
            1e-12);
}

// Emerging-Optimizers divides by norms down to 1e-15.
TEST(NewtonSchulz, DoesNotDependOnTheSizeOfTheMatrix) {
  const at::Tensor x = values({5, 8}, 3);
  EXPECT_LT((optim::newton_schulz(x * 1e-12, 5) - optim::newton_schulz(x, 5)).abs().max().item<double>(), 1e-12);
  EXPECT_TRUE(optim::newton_schulz(at::zeros_like(x), 5).equal(at::zeros_like(x)));
}

// One step of simple on a diagonal matrix d / |d|: a d + b d^3 + c d^5; quintic takes its sets in turn.
TEST(NewtonSchulz, TakesTheNamedCoefficients) {
  const at::Tensor d = at::tensor({3.0, 4.0}, at::kDouble);
  const auto stepped = [](const at::Tensor& y, double a, double b, double c) {
    return y * a + y.pow(3) * b + y.pow(5) * c;
  };
  const at::Tensor simple = stepped(d / 5, 3.4445, -4.7750, 2.0315);
  EXPECT_LT((optim::newton_schulz(at::diag(d), 1, config::MuonCoefficients::simple) - at::diag(simple))
                .abs()
                .max()
                .item<double>(),
            1e-14);
  at::Tensor quintic = d / 5;
  const double sets[][3] = {{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377}, {3.7418, -5.5913, 2.3037},
                            {2.8769, -3.1427, 1.2046}, {2.8366, -3.0525, 1.2012}, {4.0848, -6.8946, 2.9270}};
  for (const auto& [a, b, c] : sets) quintic = stepped(quintic, a, b, c);
  // Six steps of a slope of at most 4.1 from roundings of 1e-16.
  EXPECT_LT((optim::newton_schulz(at::diag(d), 6) - at::diag(quintic)).abs().max().item<double>(), 1e-12);
}

TEST(MuonScale, IsTheNamedRule) {
  EXPECT_DOUBLE_EQ(optim::muon_scale(config::MuonScale::spectral, 4, 16), 4.0);
  EXPECT_DOUBLE_EQ(optim::muon_scale(config::MuonScale::unit_rms_norm, 16, 4), 2.0);
  EXPECT_DOUBLE_EQ(optim::muon_scale(config::MuonScale::shape_scaling, 4, 16), 1.0);
  EXPECT_DOUBLE_EQ(optim::muon_scale(config::MuonScale::shape_scaling, 16, 4), 2.0);
}

TEST(Muon, UpdatesMatricesByTheFormulaAndTheRestByAdamW) {
  std::vector<nn::Param> params{make_param("weight", values({6, 4}, 1)), make_param("bias", values({6}, 2)),
                                make_param("embedding", values({5, 4}, 3))};
  params[1].placement.role = topology::Role::bias;
  params[2].placement.role = topology::Role::embedding;
  for (nn::Param& param : params) param.main_grad = values(param.data.sizes().vec(), 11);
  config::Optim config;
  config.optimizer = "muon";
  config.muon_momentum = 0.9;
  const optim::ParamGroups groups(config, pointers(params));
  optim::OptimizerContext context;
  context.groups = &groups;
  const auto muon = optim::make_optimizer(config, whole_shards(pointers(params)), context);
  const at::Tensor before = params[0].data.clone(), gradient = params[0].main_grad * 0.5;
  std::vector<optim::GroupRates> rates;
  for (const optim::GroupFactors& group : groups.factors()) rates.push_back({0.02, 0.1 * group.wd_mult});
  muon->step(make_step_state(config, rates, 0.5, 1));
  const at::Tensor expected =
      before * (1 - 0.02 * 0.1) - 0.02 * std::sqrt(6.0) * optim::newton_schulz(0.1 * gradient, 5);
  EXPECT_LT((params[0].data - expected).abs().max().item<double>(), 1e-13);
  std::vector<std::string> kinds;
  for (const optim::State& state : muon->state()) kinds.push_back(state.param->name + " " + state.kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"bias exp_avg", "bias exp_avg_sq", "embedding exp_avg",
                                             "embedding exp_avg_sq", "weight momentum_buffer"}));
}

// Two query groups of 4 query rows, 2 key rows and 2 value rows each, interleaved as in linear_qkv.
std::vector<topology::Region> qkv_parts() {
  std::vector<topology::Region> regions;
  for (int64_t group = 0; group < 2; ++group) {
    regions.push_back({"q", 0, 8 * group, 4, "q"});
    regions.push_back({"k", 0, 8 * group + 4, 2, "k"});
    regions.push_back({"v", 0, 8 * group + 6, 2, "v"});
  }
  return regions;
}

at::Tensor take_one_step(bool split_qkv) {
  std::vector<nn::Param> params{make_param("linear_qkv", values({16, 6}, 1))};
  params[0].placement.regions = qkv_parts();
  params[0].main_grad = values({16, 6}, 11);
  config::Optim config;
  config.optimizer = "muon";
  config.muon_momentum = 0.9;
  config.muon_split_qkv = split_qkv;
  const optim::ParamGroups groups(config, pointers(params));
  optim::OptimizerContext context;
  context.groups = &groups;
  optim::make_optimizer(config, whole_shards(pointers(params)), context)
      ->step(make_step_state(config, {{0.02, 0}}, 1.0, 1));
  return params[0].data;
}

// Megatron's TensorParallelMuon.orthogonalize with is_qkv: the rows of all groups form one q, one k and one v.
TEST(Muon, SplitsQkvByDefault) {
  EXPECT_TRUE(config::Optim{}.muon_split_qkv);
  const at::Tensor before = values({16, 6}, 1), gradient = values({16, 6}, 11);
  at::Tensor expected = before.clone();
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}) {
    const at::Tensor index = at::tensor(rows), one = gradient.index_select(0, index);
    const double scale = std::sqrt(std::max<double>(static_cast<double>(rows.size()), 6));
    expected.index_add_(0, index, -0.02 * scale * optim::newton_schulz(0.1 * one, 5));
  }
  // Products of 16 terms in five iterations, as kTolerance of muon_ranks_test.cpp.
  EXPECT_LT((take_one_step(true) - expected).abs().max().item<double>(), 7e-14);
  const at::Tensor whole = before - 0.02 * 4 * optim::newton_schulz(0.1 * gradient, 5);
  EXPECT_LT((take_one_step(false) - whole).abs().max().item<double>(), 7e-14);
}

// A matrix that Muon updates, and a bias and an embedding of the inner optimizer.
struct Mixed {
  std::vector<nn::Param> params{make_param("weight", values({6, 4}, 1)), make_param("second", values({3, 5}, 4)),
                                make_param("bias", values({6}, 2)), make_param("embedding", values({5, 4}, 3))};
  config::Optim config;
  std::unique_ptr<optim::ParamGroups> groups;
  std::unique_ptr<optim::Optimizer> muon;

  explicit Mixed(bool nesterov = true, at::ScalarType dtype = at::kDouble) {
    for (nn::Param& param : params) param.data = param.data.to(dtype);
    params[2].placement.role = topology::Role::bias;
    params[3].placement.role = topology::Role::embedding;
    config.optimizer = "muon";
    config.muon_momentum = 0.9;
    config.muon_use_nesterov = nesterov;
    groups = std::make_unique<optim::ParamGroups>(config, pointers(params));
    for (nn::Param& param : params) param.main_grad = at::zeros_like(param.data);
    optim::OptimizerContext context;
    context.groups = groups.get();
    muon = optim::make_optimizer(config, whole_shards(pointers(params)), context);
  }
  void step(int64_t number, double rate = 0.02) {
    for (nn::Param& param : params)
      param.main_grad.copy_(values(param.data.sizes().vec(), static_cast<uint64_t>(10 + number)));
    const std::vector<optim::GroupRates> rates(groups->factors().size(), {rate, 0});
    muon->step(make_step_state(config, rates, 1.0, number));
  }
};

// In the first step both directions are multiples of the gradient, so the second step is compared.
TEST(Muon, TakesTheMomentumOrNesterovsStep) {
  for (const bool nesterov : {false, true}) {
    Mixed one(nesterov);
    one.step(1);
    const at::Tensor before = one.params[0].data.clone();
    one.step(2);
    const at::Tensor first = values({6, 4}, 11), second = values({6, 4}, 12),
                     momentum = 0.9 * 0.1 * first + 0.1 * second,
                     direction = nesterov ? 0.1 * second + 0.9 * momentum : momentum;
    const at::Tensor expected = before - 0.02 * std::sqrt(6.0) * optim::newton_schulz(direction, 5);
    EXPECT_LT((one.params[0].data - expected).abs().max().item<double>(), 1e-13) << nesterov;
  }
}

TEST(Muon, GoesOnFromRestoredStateOfBothOptimizers) {
  Mixed first, resumed;
  for (const int64_t number : {1, 2}) first.step(number);
  for (size_t i = 0; i < first.params.size(); ++i) resumed.params[i].data.copy_(first.params[i].data);
  resumed.muon->copy_from_params();
  const std::vector<optim::State> mine = resumed.muon->state();
  for (const optim::State& state : first.muon->state()) {
    const auto same = std::find_if(mine.begin(), mine.end(), [&](const optim::State& other) {
      return other.param->name == state.param->name && other.kind == state.kind;
    });
    ASSERT_NE(same, mine.end()) << state.kind;
    resumed.muon->restore(*same, state.values());
  }
  first.step(3);
  resumed.step(3);
  for (size_t i = 0; i < first.params.size(); ++i)
    EXPECT_TRUE(at::equal(first.params[i].data, resumed.params[i].data)) << first.params[i].name;
}

// A step at rate 0 writes the main values, so it must keep parameters that were replaced from outside.
TEST(Muon, BothOptimizersReadReplacedParameters) {
  Mixed one(true, at::kBFloat16);
  for (nn::Param& param : one.params) param.data.mul_(2);
  one.muon->copy_from_params();
  std::vector<at::Tensor> expected;
  for (const nn::Param& param : one.params) expected.push_back(param.data.clone());
  one.step(1, 0);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(one.params[i].data, expected[i])) << one.params[i].name;
}

TEST(Muon, CountsTheBytesOfAllMoments) {
  const Mixed one;
  // Two matrices with one moment each, bias and embedding with two, in float64.
  EXPECT_EQ(one.muon->bytes().moments, 8 * (24 + 15 + 2 * (6 + 20)));
}

TEST(Muon, ScalesItsStepByTheExtraFactor) {
  const auto change = [](double factor) {
    std::vector<nn::Param> params{make_param("weight", values({6, 4}, 1))};
    params[0].main_grad = values({6, 4}, 11);
    config::Optim config;
    config.optimizer = "muon";
    config.muon_extra_scale_factor = factor;
    const optim::ParamGroups groups(config, pointers(params));
    optim::OptimizerContext context;
    context.groups = &groups;
    optim::make_optimizer(config, whole_shards(pointers(params)), context)
        ->step(make_step_state(config, {{0.02, 0}}, 1.0, 1));
    return params[0].data - values({6, 4}, 1);
  };
  // A factor of 2^-2 scales the step exactly. Each change has two roundings, of the new value and of the difference,
  // and one more for the value that is compared: at most 4 roundings of 2^-53 of numbers below `largest`.
  const double largest = values({6, 4}, 1).abs().max().item<double>() + 1;
  EXPECT_LT((change(0.25) - 0.25 * change(1)).abs().max().item<double>(), 4 * largest * 0x1p-53);
}

// Without a start of its own the second group would get the weight decay of the first.
TEST(ParamGroups, DifferByTheStartOfTheWeightDecay) {
  std::vector<nn::Param> params{make_param("a.weight", values({2, 2}, 1)), make_param("b.weight", values({2, 2}, 2))};
  config::Optim config;
  config.param_groups = {"a.* start_wd=0.1 end_wd=0.5", "b.* start_wd=0.3 end_wd=0.5"};
  const optim::ParamGroups groups(config, pointers(params));
  EXPECT_NE(groups.of(params[0]), groups.of(params[1]));
}

TEST(ParamGroups, FollowKindNameAndTheDecoupledRate) {
  std::vector<nn::Param> params{make_param("a.weight", values({2, 2}, 1)), make_param("a.bias", values({2}, 2)),
                                make_param("x.q_layernorm.weight", values({2}, 3)),
                                make_param("embedding.weight", values({2, 2}, 4))};
  params[1].placement.role = topology::Role::bias;
  params[2].placement.role = topology::Role::qk_norm;
  params[3].placement.role = topology::Role::embedding;
  config::Optim config;
  config.lr = 0.1;
  config.weight_decay = 0.01;
  const auto find_rates = [&](const config::Optim& optim) {
    const optim::ParamGroups groups(optim, pointers(params));
    optim::ScheduleArgs args;
    args.max_lr = 0.1;
    args.lr_decay_steps = 10;
    args.lr_decay_style = "constant";
    args.start_wd = args.end_wd = 0.01;
    const auto rates = groups.rates(optim::LrSchedule(args), 5);
    std::vector<std::pair<double, double>> all;
    for (const nn::Param& param : params)
      all.emplace_back(rates[groups.of(param)].lr, rates[groups.of(param)].weight_decay);
    return all;
  };
  using Rates = std::vector<std::pair<double, double>>;
  EXPECT_EQ(find_rates(config), (Rates{{0.1, 0.01}, {0.1, 0.0}, {0.1, 0.0}, {0.1, 0.01}}));
  config.apply_wd_to_qk_layernorm = true;
  config.decoupled_lr = 0.05;
  config.param_groups = {"a.* lr_mult=0.5 wd_mult=2"};
  EXPECT_EQ(find_rates(config), (Rates{{0.05, 0.02}, {0.05, 0.02}, {0.1, 0.01}, {0.05, 0.01}}));
  config.decoupled_min_lr = 0.02;
  const optim::ParamGroups groups(config, pointers(params));
  EXPECT_EQ(groups.factors()[groups.of(params[3])].min_lr, 0.02);
  EXPECT_TRUE(std::isnan(groups.factors()[groups.of(params[0])].min_lr)) << "the schedule's own";
}

}  // namespace
}  // namespace metroplex::test::muon_test
