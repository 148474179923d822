// The nearest semi-orthogonal matrix, and which parameters get it.
#include "optim/muon.h"

#include <ATen/ATen.h>

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
  const auto muon = optim::make_optimizer(config, whole_slices(pointers(params)), context);
  const at::Tensor before = params[0].data.clone(), gradient = params[0].main_grad * 0.5;
  std::vector<optim::GroupRates> rates;
  for (const optim::GroupFactors& group : groups.factors()) rates.push_back({0.02, 0.1 * group.wd_mult});
  muon->step(judged(config, rates, 0.5, 1));
  const at::Tensor expected =
      before * (1 - 0.02 * 0.1) - 0.02 * std::sqrt(6.0) * optim::newton_schulz(0.1 * gradient, 5);
  EXPECT_LT((params[0].data - expected).abs().max().item<double>(), 1e-13);
  std::vector<std::string> kinds;
  for (const optim::State& state : muon->state()) kinds.push_back(state.param->name + " " + state.kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"bias exp_avg", "bias exp_avg_sq", "embedding exp_avg",
                                             "embedding exp_avg_sq", "weight momentum_buffer"}));
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
  const auto rates_of = [&](const config::Optim& c) {
    const optim::ParamGroups groups(c, pointers(params));
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
  EXPECT_EQ(rates_of(config), (Rates{{0.1, 0.01}, {0.1, 0.0}, {0.1, 0.0}, {0.1, 0.01}}));
  config.apply_wd_to_qk_layernorm = true;
  config.decoupled_lr = 0.05;
  config.param_groups = {"a.* lr_mult=0.5 wd_mult=2"};
  EXPECT_EQ(rates_of(config), (Rates{{0.05, 0.02}, {0.05, 0.02}, {0.1, 0.01}, {0.05, 0.01}}));
}

}  // namespace
}  // namespace metroplex::test::muon_test
