// h = residual + dropout(x + bias) and norm(h) in one call: against the formula in float64, and bit for bit against
// the two separate calls.
#include "nn/dropout_norm.h"

#include "nn/autograd_node.h"
#include "nn/recompute.h"
#include "nn/tools.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>

namespace metroplex::test::dropout_norm_test {
namespace {

struct Case {
  int64_t s = 1, b = 1, width = 1;
  bool rms = false, bias = true;
  double probability = 0;
  at::ScalarType stream = at::kDouble, dtype = at::kDouble;  // of the residual; of parameters and x
};

std::string case_name(const Case& test_case) {
  return base::concat("[", test_case.s, ", ", test_case.b, ", ", test_case.width, "] rms ", test_case.rms, " bias ",
                      test_case.bias, " dropout ", test_case.probability, " types ",
                      static_cast<int>(test_case.stream), " ", static_cast<int>(test_case.dtype));
}

struct Types {
  at::ScalarType stream, dtype;
};
const std::vector<Types> kTypes{{at::kDouble, at::kDouble},     {at::kFloat, at::kFloat},
                                {at::kBFloat16, at::kBFloat16}, {at::kHalf, at::kHalf},
                                {at::kFloat, at::kBFloat16},    {at::kFloat, at::kHalf}};

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }
at::Tensor exact(const at::Tensor& x) { return leaf(x.to(at::kDouble)); }
at::Tensor make_temporary(const at::Tensor& x) {
  return nn::attach(x.detach().clone(), {x}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
}

struct Layer {
  explicit Layer(const Case& test_case)
      : c(test_case), norm({"n", test_case.width, test_case.rms, 1e-5}, layer_context({}, false, test_case.dtype)) {
    bias = nn::make_param({"b", {test_case.width}, {}, nn::Init::normal}, layer_context({}, false, test_case.dtype));
    norm.collect_params(params);
    for (size_t i = 0; i < params.size(); ++i) params[i]->data.copy_(sample({test_case.width}, i + 5) + 0.5);
    params.push_back(&bias);
    give_main_grad(params);
    batch.counters.samples = nn::make_sample_counters(3, at::arange(test_case.b, at::kLong) + 7);
    x = leaf(sample({test_case.s, test_case.b, test_case.width}, 1, test_case.dtype));
    residual = leaf(sample({test_case.s, test_case.b, test_case.width}, 2, test_case.stream));
    dh = sample({test_case.s, test_case.b, test_case.width}, 3, test_case.stream);
    dy = sample({test_case.s, test_case.b, test_case.width}, 4, test_case.dtype);
  }

  nn::BiasDropoutAdd add() {
    return {{5, 2, nn::RandomSite::attention_output, c.probability, {}}, c.bias ? &bias : nullptr, {c.s}};
  }
  nn::ResidualAndNorm one_call() {
    return nn::bias_dropout_add_norm(make_temporary(x), residual, {add(), &norm, saving}, batch);
  }
  nn::ResidualAndNorm two_calls() {
    const at::Tensor h = nn::bias_dropout_add(make_temporary(x), residual, add(), batch);
    return {h, nn::normalize(norm, h, saving)};
  }
  // Gradients of x and residual, then of the parameters, from one or both results.
  std::vector<at::Tensor> gradients(const nn::ResidualAndNorm& out, bool from_h, bool from_norm) {
    for (nn::Param* param : params) param->main_grad.zero_();
    std::vector<at::Tensor> results, given;
    if (from_h) results.push_back(out.h), given.push_back(dh);
    if (from_norm) results.push_back(out.normed.x), given.push_back(dy);
    std::vector<at::Tensor> all = torch::autograd::grad(results, {x, residual}, given);
    for (const nn::Param* param : params) all.push_back(param->main_grad.clone());
    return all;
  }

  Case c;
  nn::Norm norm;
  nn::Param bias;
  std::vector<nn::Param*> params;  // weight, bias of a LayerNorm, bias of the sum
  nn::Microbatch batch;
  nn::SavePolicy saving;
  at::Tensor x, residual, dh, dy;
};

// Half the relative distance between neighboring numbers.
double unit(at::ScalarType type) {
  const int bits = type == at::kDouble ? 53 : type == at::kFloat ? 24 : type == at::kHalf ? 11 : 8;
  return std::ldexp(1, -bits);
}

// Arithmetic in fp32 (float64). A sum over a row uses 16 lanes and is off by up to width / 16 + 16 roundings of its
// terms. A sum over up to 67 rows in blocks of 32 is off by 35. Later operations add a dozen more. The bound is twice
// that, because the reference is rounded too and errors of mean and rstd combine.
double slack(const Case& test_case) {
  return 2 * (static_cast<double>(test_case.width) / 16 + 40) *
         unit(test_case.stream == at::kDouble ? at::kDouble : at::kFloat);
}

// `|got - wanted| <= bound + slack * max(1, |wanted|)`, with the largest element of `wanted`.
void expect_near(const at::Tensor& got, const at::Tensor& wanted, const at::Tensor& bound, const Case& test_case,
                 const char* what) {
  // The smallest step of fp16 is 2^-24.
  const double finest = test_case.dtype == at::kHalf ? std::ldexp(2, -25) : 0;
  const at::Tensor allowed = bound + slack(test_case) * std::max(1.0, largest(wanted)) + finest;
  const at::Tensor error = (got.to(at::kDouble) - wanted).abs();
  EXPECT_TRUE((error <= allowed).all().item<bool>()) << what << " of " << case_name(test_case) << ": off by up to "
                                                     << largest(error / allowed) << " of what is allowed";
}

void check_formula(const Case& test_case) {
  Layer layer(test_case);
  nn::BiasDropoutAdd how = layer.add();
  how.bias = nullptr;
  const at::Tensor mask =
      nn::bias_dropout_add(at::ones({test_case.s, test_case.b, test_case.width}, at::kDouble), {}, how, layer.batch);
  const nn::ResidualAndNorm out = layer.one_call();
  ASSERT_EQ(out.h.scalar_type(), test_case.stream);
  ASSERT_EQ(out.normed.x.scalar_type(), test_case.dtype);
  const auto got = layer.gradients(out, true, true);

  at::Tensor x = layer.x.detach().to(at::kDouble);
  if (test_case.bias) x = x + layer.bias.data.to(at::kDouble);
  const at::Tensor sum = layer.residual.detach().to(at::kDouble) + mask * x;
  expect_near(out.h, sum, sum.abs() * unit(test_case.stream), test_case, "h");

  // The norm is of the rounded h; its gradient is rounded before and after it is added to dh.
  const at::Tensor h = exact(out.h), weight = exact(layer.params[0]->data);
  const at::Tensor shift = test_case.rms ? at::Tensor() : exact(layer.params[1]->data);
  const at::Tensor centered = test_case.rms ? h : h - h.mean(-1, true);
  const at::Tensor normal = centered * at::rsqrt(centered.square().mean(-1, true) + 1e-5);
  const at::Tensor normed = test_case.rms ? normal * weight : normal * weight + shift;
  expect_near(out.normed.x, normed.detach(), normed.detach().abs() * unit(test_case.dtype), test_case, "norm");
  const at::Tensor dy = layer.dy.to(at::kDouble);
  const at::Tensor own = torch::autograd::grad({normed}, {h}, {dy})[0], total = own + layer.dh.to(at::kDouble);
  const at::Tensor rounding = (own.abs() + total.abs()) * unit(test_case.stream);
  expect_near(got[1], total, rounding, test_case, "gradient of the residual");
  expect_near(got[0], total * mask, rounding * mask + (total * mask).abs() * unit(test_case.dtype), test_case,
              "gradient of x");

  // For sums over rows: relative to the sum of the absolute terms. Gradients of fp16 parameters pass through fp16.
  const double through_fp16 = test_case.dtype == at::kHalf ? unit(test_case.dtype) : 0;
  const auto check_sum = [&](const at::Tensor& sum, const at::Tensor& terms, const char* what) {
    const at::Tensor rows = terms.flatten(0, 1), wanted = rows.sum(0);
    expect_near(sum, wanted, rows.abs().sum(0) * slack(test_case) + wanted.abs() * through_fp16, test_case, what);
  };
  check_sum(got[2], dy * normal.detach(), "dweight");
  if (!test_case.rms) check_sum(got[3], dy, "dbias");
  if (test_case.bias) check_sum(got.back(), got[0].to(at::kDouble), "gradient of the bias of x");
}

template <class Check>
void for_each_variant(Case test_case, const Check& check) {
  for (const bool rms : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const double probability : {0.0, 0.3}) {
        test_case.rms = rms;
        test_case.bias = bias;
        test_case.probability = probability;
        check(test_case);
      }
    }
  }
}

TEST(DropoutNorm, SumNormAndGradientsAreThoseOfTheFormulaInEveryType) {
  for (const Types& types : kTypes) {
    for (const auto& [s, b, width] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 1, 1}, {67, 1, 1}, {11, 3, 7}, {1, 2, 64}, {33, 2, 384}, {67, 1, 1000}, {3, 3, 4096}}) {
      for_each_variant({s, b, width, false, false, 0, types.stream, types.dtype}, check_formula);
    }
  }
}

void expect_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted,
                      const Case& test_case, const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::equal(got[i], wanted[i])) << what << ", tensor " << i << " of " << case_name(test_case);
}

void check_two_calls(const Case& test_case) {
  Layer layer(test_case);
  const auto results = [](const nn::ResidualAndNorm& out) { return std::vector<at::Tensor>{out.h, out.normed.x}; };
  for (const auto& [from_h, from_norm] : {std::pair{true, true}, {false, true}, {true, false}}) {
    const nn::ResidualAndNorm one = layer.one_call(), two = layer.two_calls();
    expect_same_bits(results(one), results(two), test_case, "forward");
    const auto got = layer.gradients(one, from_h, from_norm);
    expect_same_bits(got, layer.gradients(two, from_h, from_norm), test_case,
                     from_h ? "from h" : "from the norm alone");
  }
}

TEST(DropoutNorm, HasTheBitsOfTwoCallsForwardAndBackwardInEveryType) {
  for (const Types& types : kTypes) {
    for (const int64_t rows : {1, 2, 31, 32, 33, 64, 67}) {
      for (const int64_t width : {1, 7, 64, 130})
        for_each_variant({rows, 1, width, false, false, 0, types.stream, types.dtype}, check_two_calls);
    }
    for (const int64_t width : {384, 1000, 4096})
      for_each_variant({5, 3, width, false, false, 0, types.stream, types.dtype}, check_two_calls);
  }
}

TEST(DropoutNorm, EvaluationDropsNothingAndKeepsNoHistory) {
  Layer layer({6, 2, 40, false, true, 0.3});
  layer.batch.training = false;
  const at::NoGradGuard no_grad;
  const nn::ResidualAndNorm out = layer.one_call(), two = layer.two_calls();
  EXPECT_TRUE(at::equal(out.h, layer.residual + (layer.x + layer.bias.data)));
  EXPECT_TRUE(at::equal(out.normed.x, two.normed.x));
  EXPECT_FALSE(out.h.requires_grad());
  EXPECT_FALSE(out.normed.recomputed.defined());
}

TEST(DropoutNorm, ARecomputedNormIsMadeAgainOutOfTheSum) {
  Layer layer({6, 2, 40, true, true, 0.3, at::kFloat, at::kBFloat16});
  EXPECT_FALSE(layer.one_call().normed.recomputed.defined());
  layer.saving.recomputed = {nn::SavePoint::norm};
  const nn::ResidualAndNorm out = layer.one_call();
  ASSERT_TRUE(out.normed.recomputed.defined());
  const at::Tensor again = out.normed.recomputed.get();
  EXPECT_TRUE(at::equal(again, out.normed.x));
  EXPECT_FALSE(again.is_alias_of(out.normed.x));
}

TEST(DropoutNorm, WantsCountersThatLieWhereItRuns) {
  Layer layer({4, 2, 8, false, true, 0.3});
  layer.batch.counters.samples = at::Tensor();
  EXPECT_THROW(layer.one_call(), std::logic_error);
  layer.batch.counters.samples = at::empty({2}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
  EXPECT_THROW(layer.one_call(), std::logic_error);
}

}  // namespace
}  // namespace metroplex::test::dropout_norm_test
