// AdamW and SGD against their formulas in float64, five steps.
#include "optim/optimizer.h"

#include <cmath>
#include <map>

#include "base/error.h"
#include "config/optimizers.h"
#include "distributed/tools.h"
#include "optim/judged.h"

namespace metroplex::test::optimizer_test {
namespace {

constexpr int kSteps = 5;

struct Case {
  at::ScalarType dtype = at::kDouble;
  double weight_decay = 0.1, factor = 1.0, momentum = 0.9;
};

config::Optim optim_config(const std::string& name, const Case& test_case) {
  config::Optim config;
  config.optimizer = name;
  config.sgd_momentum = test_case.momentum;
  return config;
}

std::vector<nn::Param> two_params(at::ScalarType dtype) {
  std::vector<nn::Param> params{make_param("weight", values({4, 6}, 1, dtype)),
                                make_param("bias", values({6}, 2, dtype))};
  params[1].placement.role = topology::Role::bias;
  for (nn::Param& param : params) param.main_grad = at::zeros_like(param.data);
  return params;
}

at::Tensor gradient(const nn::Param& param, int step) {
  return values(param.data.sizes().vec(), 100 + 10 * step + static_cast<int>(param.data.dim()),
                param.data.scalar_type());
}

double step_lr(int step) { return 0.01 * (1 + step); }

// An optimizer over whole parameters, and its groups: with and without weight decay.
struct Fixture {
  Fixture(const config::Optim& config, std::vector<nn::Param>& params)
      : config(config), groups(config, pointers(params)) {
    optim::OptimizerContext context;
    context.groups = &groups;
    optimizer = optim::make_optimizer(config, whole_shards(pointers(params)), context);
  }
  optim::Optimizer* operator->() const { return optimizer.get(); }

  config::Optim config;
  optim::ParamGroups groups;
  std::unique_ptr<optim::Optimizer> optimizer;
};

optim::StepState make_state(const Fixture& fixture, const Case& test_case, int step, bool updates = true) {
  std::vector<optim::GroupRates> rates;
  for (const optim::GroupFactors& group : fixture.groups.factors())
    rates.push_back({step_lr(step), test_case.weight_decay * group.wd_mult});
  return make_step_state(fixture.config, rates, test_case.factor, step + 1, updates);
}

void take_step(const Fixture& fixture, std::vector<nn::Param>& params, const Case& test_case, int step) {
  for (nn::Param& param : params) param.main_grad.copy_(gradient(param, step));
  fixture->step(make_state(fixture, test_case, step));
}

// One parameter's trajectory by the formula, all in double.
struct Formula {
  at::Tensor p, first, second;
  bool has_weight_decay;

  explicit Formula(const nn::Param& param)
      : p(param.data.to(at::kDouble, false, true)),
        first(at::zeros_like(p)),
        second(at::zeros_like(p)),
        has_weight_decay(param.has_weight_decay()) {}

  void adam(const at::Tensor& grad, const Case& test_case, int step) {
    const int t = step + 1;
    const double lr = step_lr(step), decay = has_weight_decay ? test_case.weight_decay : 0.0;
    const at::Tensor g = grad.to(at::kDouble) * test_case.factor;
    p = p * (1 - lr * decay);
    first = 0.9 * first + 0.1 * g;
    second = 0.999 * second + 0.001 * g * g;
    const at::Tensor corrected = (second / (1 - std::pow(0.999, t))).sqrt() + 1e-8;
    p = p - lr * (first / (1 - std::pow(0.9, t))) / corrected;
  }
  void sgd(const at::Tensor& grad, const Case& test_case, int step) {
    const at::Tensor g =
        grad.to(at::kDouble) * test_case.factor + (has_weight_decay ? test_case.weight_decay : 0.0) * p;
    first = test_case.momentum * first + g;
    p = p - step_lr(step) * first;
  }
};

// float64: a dozen operations per step on values near 1. float32: each step rounds the parameter and the moments once
// or twice (2^-24 of 1). A ratio of moments is off by a few such roundings times lr.
double tolerance(const Case& test_case) { return test_case.dtype == at::kDouble ? 1e-14 : 1e-6; }

void check(const std::string& name, const Case& test_case) {
  SCOPED_TRACE(name + base::concat(" decay ", test_case.weight_decay, " factor ", test_case.factor, " momentum ",
                                   test_case.momentum, " ", c10::toString(test_case.dtype)));
  std::vector<nn::Param> params = two_params(test_case.dtype);
  std::vector<Formula> expected;
  for (const nn::Param& param : params) expected.emplace_back(param);
  const Fixture optimizer(optim_config(name, test_case), params);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor grad = gradient(params[i], step);
      if (name == "adam") expected[i].adam(grad, test_case, step);
      if (name == "sgd") expected[i].sgd(grad, test_case, step);
    }
    take_step(optimizer, params, test_case, step);
    for (size_t i = 0; i < params.size(); ++i) {
      const double off = (params[i].data.to(at::kDouble) - expected[i].p).abs().max().item<double>();
      EXPECT_LE(off, tolerance(test_case)) << params[i].name << " after step " << step + 1;
    }
  }
  EXPECT_EQ(optimizer->state().empty(), name == "sgd" && test_case.momentum == 0);
  for (const optim::State& state : optimizer->state()) {
    const Formula& formula = expected[state.param == &params[0] ? 0 : 1];
    const at::Tensor& moment = state.kind == "exp_avg_sq" ? formula.second : formula.first;
    EXPECT_LE((state.values().to(at::kDouble) - moment.view(-1)).abs().max().item<double>(), tolerance(test_case))
        << state.kind;
  }
}

void check_all(const std::string& name, at::ScalarType dtype) {
  for (const double decay : {0.0, 0.1}) {
    for (const double factor : {1.0, 0.37}) check(name, {dtype, decay, factor});
  }
}

TEST(Optimizer, AdamWInFloat64IsItsFormula) { check_all("adam", at::kDouble); }
TEST(Optimizer, AdamWInFloat32IsItsFormulaToRounding) { check_all("adam", at::kFloat); }
TEST(Optimizer, SgdInFloat64IsItsFormula) { check_all("sgd", at::kDouble); }
TEST(Optimizer, SgdInFloat32IsItsFormulaToRounding) { check_all("sgd", at::kFloat); }
TEST(Optimizer, SgdWithoutMomentumIsPlainDescent) {
  check("sgd", {at::kDouble, 0.1, 0.5, 0.0});
  check("sgd", {at::kFloat, 0.0, 1.0, 0.0});
}

TEST(Optimizer, StateHasANameAndThePlaceOfItsParameter) {
  std::vector<nn::Param> params = two_params(at::kFloat);
  const auto names = [&](const std::string& optimizer) {
    std::vector<std::string> list;
    const Fixture fixture(optim_config(optimizer, {}), params);
    for (const optim::State& state : fixture->state()) {
      EXPECT_EQ(state.values().numel(), state.param->numel());
      list.push_back(state.param->name + " " + state.kind);
    }
    return list;
  };
  EXPECT_EQ(names("adam"),
            (std::vector<std::string>{"weight exp_avg", "weight exp_avg_sq", "bias exp_avg", "bias exp_avg_sq"}));
  EXPECT_EQ(names("sgd"), (std::vector<std::string>{"weight momentum_buffer", "bias momentum_buffer"}));
}

// The optimizers hold exactly the moments that the rules and the memory formula read from the table.
TEST(Optimizer, EveryRowOfTheTableKeepsTheMomentsItNames) {
  for (const config::OptimizerTraits& traits : config::optimizers()) {
    for (const double momentum : {0.0, 0.9}) {
      const config::Optim config = optim_config(traits.name, {at::kFloat, 0.1, 1.0, momentum});
      std::vector<nn::Param> params = two_params(at::kBFloat16);
      const Fixture fixture(config, params);
      std::map<std::string, std::vector<std::string>> kinds;
      int64_t moment_bytes = 0;
      for (const optim::State& state : fixture->state()) {
        kinds[state.param->name].push_back(state.kind);
        if (state.kind != "main") moment_bytes += static_cast<int64_t>(state.values().nbytes());
      }
      EXPECT_EQ(fixture->bytes().moments, moment_bytes) << traits.name;
      const config::OptimizerTraits* const others =
          traits.others == nullptr ? &traits : config::find_optimizer(traits.others);
      ASSERT_NE(others, nullptr) << traits.name;
      const auto expected = [&](const config::OptimizerTraits& of) {
        std::vector<std::string> list{"main"};
        for (const config::OptimizerMoment& moment : of.kept(config)) list.emplace_back(moment.kind);
        return list;
      };
      EXPECT_EQ(kinds["weight"], expected(traits)) << traits.name;
      EXPECT_EQ(kinds["bias"], expected(*others)) << traits.name;
    }
  }
}

TEST(Optimizer, GoesOnBitForBitFromItsStateAndStepCount) {
  for (const std::string& name : config::optimizer_names()) {
    const Case test_case{at::kFloat, 0.1, 0.7};
    std::vector<nn::Param> straight = two_params(test_case.dtype), resumed = two_params(test_case.dtype);
    const Fixture first(optim_config(name, test_case), straight);
    for (int step = 0; step < 3; ++step) take_step(first, straight, test_case, step);
    const Fixture second(optim_config(name, test_case), resumed);
    for (size_t i = 0; i < resumed.size(); ++i) resumed[i].data.copy_(straight[i].data);
    const auto from = first->state(), to = second->state();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) { second->restore(to[i], from[i].values().clone()); }
    for (int step = 3; step < kSteps; ++step) {
      take_step(first, straight, test_case, step);
      take_step(second, resumed, test_case, step);
    }
    for (size_t i = 0; i < resumed.size(); ++i) EXPECT_TRUE(at::equal(resumed[i].data, straight[i].data)) << name;
  }
}

// Non-finite gradients would immediately show in moments and main parameters.
TEST(Optimizer, AStepThatIsHeldBackChangesNothingWhateverItsGradientsAre) {
  for (const std::string& name : config::optimizer_names()) {
    for (const bool offload : {false, true}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(name + " " + c10::toString(dtype) + (offload ? " offload" : ""));
        const Case test_case{dtype, 0.1, 0.7};
        std::vector<nn::Param> params = two_params(dtype);
        config::Optim config = optim_config(name, test_case);
        config.optimizer_cpu_offload = offload;
        const Fixture fixture(config, params);
        take_step(fixture, params, test_case, 0);
        const auto everything = [&] {
          std::vector<at::Tensor> all;
          for (const nn::Param& param : params) all.push_back(param.data.clone());
          for (const optim::State& state : fixture->state()) all.push_back(state.values().clone());
          return all;
        };
        const std::vector<at::Tensor> before = everything();
        for (nn::Param& param : params) param.main_grad.fill_(NAN);
        fixture->step(make_state(fixture, test_case, 1, false));
        const std::vector<at::Tensor> after = everything();
        for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
        take_step(fixture, params, test_case, 1);
        EXPECT_FALSE(at::equal(params[0].data, before[0]));
      }
    }
  }
}

TEST(Optimizer, AnUnknownNameIsRefused) {
  try {
    std::vector<nn::Param> none;
    const Fixture fixture(optim_config("adagrad", {}), none);
    FAIL() << "adagrad was made";
  } catch (const base::Error& error) { EXPECT_NE(std::string(error.what()).find("adagrad"), std::string::npos); }
}

}  // namespace
}  // namespace metroplex::test::optimizer_test
