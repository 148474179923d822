// Every operation against plain autograd over at:: operators in float64, and float kernels against double ones.
#include "nn/autograd_node.h"
#include "nn/activation.h"
#include "nn/bias_activation.h"
#include "nn/dropout.h"
#include "nn/loss.h"
#include "nn/norm.h"
#include "nn/rope.h"
#include "nn/tools.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::kernels_test {
namespace {

constexpr double kDouble = 1e-12;

// d(sum(y * weight)) / dx with autograd.
at::Tensor gradient(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  return torch::autograd::grad({y}, {x}, {weight})[0];
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool rms) {
  if (rms) return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * weight;
  return at::layer_norm(x, {x.size(-1)}, weight, bias, 1e-5);
}

void check_norm(int64_t width, bool rms, bool one_plus) {
  nn::NormSpec spec{"n", width, rms};
  spec.one_plus = one_plus;
  nn::Norm norm(spec, layer_context());
  std::vector<nn::Param*> params;
  norm.collect_params(params);
  give_main_grad(params);
  for (size_t i = 0; i < params.size(); ++i) params[i]->data.copy_(sample({width}, i + 5) + 0.5);
  const at::Tensor x = leaf(sample({9, 5, width}, 1)), same = leaf(x), dy = sample({9, 5, width}, 2);
  const at::Tensor weight = leaf(params[0]->data), bias = rms ? at::Tensor() : leaf(params[1]->data);
  const at::Tensor expected = plain_norm(same, one_plus ? weight + 1 : weight, bias, rms), got = norm.forward(x);
  EXPECT_LT(relative_difference(got, expected), kDouble);
  std::vector<at::Tensor> wanted{same, weight};
  if (!rms) wanted.push_back(bias);
  const auto right = torch::autograd::grad({expected}, wanted, {dy});
  EXPECT_LT(relative_difference(gradient(got, x, dy), right[0]), kDouble);
  for (size_t i = 0; i < params.size(); ++i)
    EXPECT_LT(relative_difference(params[i]->main_grad, right[i + 1]), kDouble);
}

TEST(Norm, ForwardAndGradientsAreThoseOfTheFormula) {
  for (const bool rms : {false, true})
    for (const bool one_plus : {false, true})
      for (const int64_t width : {7, 16, 50}) check_norm(width, rms, one_plus);
}

at::Tensor plain_activation(const at::Tensor& x, const std::string& name) {
  if (name == "gelu") return at::gelu(x);
  if (name == "gelu_tanh") return at::gelu(x, "tanh");
  if (name == "quick_gelu") return x * at::sigmoid(1.702 * x);
  if (name == "silu") return at::silu(x);
  return name == "relu" ? at::relu(x) : at::relu(x).square();
}

TEST(Activation, ForwardAndGradientsAreThoseOfTheFormula) {
  for (const std::string name : {"gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "squared_relu"}) {
    for (const bool gated : {false, true}) {
      for (const auto dtype : {at::kDouble, at::kFloat}) {
        nn::Param bias = nn::make_param({"b", {34}, {}, nn::Init::normal}, layer_context({}, false, dtype));
        give_main_grad({&bias});
        const at::Tensor input = sample({3, 5, 34}, 3, dtype) * 6;
        const at::Tensor x = leaf(input), same = leaf(input.to(at::kDouble)), b = leaf(bias.data.to(at::kDouble));
        const at::Tensor dy = sample({3, 5, gated ? 17 : 34}, 4, dtype);
        const at::Tensor z = same + b;
        const at::Tensor expected =
            gated ? plain_activation(z.narrow(-1, 0, 17), name) * z.narrow(-1, 17, 17) : plain_activation(z, name);
        const at::Tensor temporary =
            nn::attach(x.detach().clone(), {x}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
        const at::Tensor got = bias_activation(temporary, &bias, {nn::activation_kind(name), gated, {}});
        // fp32: rounding of a few operations on values up to 6, and the erf of absolute error 1.5e-7.
        const double tolerance = dtype == at::kDouble ? kDouble : 2e-6;
        EXPECT_LT(relative_difference(got, expected), tolerance) << name;
        const auto right = torch::autograd::grad({expected}, {same, b}, {dy.to(at::kDouble)});
        EXPECT_LT(relative_difference(gradient(got, x, dy), right[0]), tolerance) << name;
        EXPECT_LT(relative_difference(bias.main_grad, right[1]), tolerance) << name;
      }
    }
  }
}

// The gate is at most 2, the other half within 2 of 0, plus 1: values of up to 6 are on both sides of every limit.
TEST(Activation, UnitsWithinLimitsAreTheFormula) {
  for (const std::string name : {"quick_gelu", "silu", "gelu"}) {
    for (const auto& [clamp, offset] : {std::pair{2.0, 1.0}, {2.0, 0.0}, {0.0, 0.5}}) {
      for (const auto dtype : {at::kDouble, at::kFloat}) {
        nn::Param bias = nn::make_param({"b", {34}, {}, nn::Init::normal}, layer_context({}, false, dtype));
        give_main_grad({&bias});
        const at::Tensor input = sample({3, 5, 34}, 3, dtype) * 6;
        const at::Tensor x = leaf(input), same = leaf(input.to(at::kDouble)), b = leaf(bias.data.to(at::kDouble));
        const at::Tensor dy = sample({3, 5, 17}, 4, dtype), z = same + b;
        at::Tensor gate = z.narrow(-1, 0, 17), up = z.narrow(-1, 17, 17);
        if (clamp > 0) gate = gate.clamp_max(clamp), up = up.clamp(-clamp, clamp);
        const at::Tensor expected = plain_activation(gate, name) * (up + offset);
        const at::Tensor temporary =
            nn::attach(x.detach().clone(), {x}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
        const at::Tensor got =
            bias_activation(temporary, &bias, {nn::activation_kind(name), true, {}, {clamp, offset}});
        const double tolerance = dtype == at::kDouble ? kDouble : 2e-6;  // as above
        EXPECT_LT(relative_difference(got, expected), tolerance) << name;
        const auto right = torch::autograd::grad({expected}, {same, b}, {dy.to(at::kDouble)});
        EXPECT_LT(relative_difference(gradient(got, x, dy), right[0]), tolerance) << name;
        EXPECT_LT(relative_difference(bias.main_grad, right[1]), tolerance) << name;
      }
    }
  }
}

TEST(Activation, HugeArgumentsGiveTheLimitsAndNoNan) {
  const at::Tensor x = at::tensor({-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30}, at::kFloat);
  for (const std::string name : {"gelu", "gelu_tanh", "quick_gelu", "silu"}) {
    const at::Tensor y = bias_activation(x.clone(), nullptr, {nn::activation_kind(name), false, {}});
    EXPECT_TRUE(at::allclose(y, at::relu(x), 1e-6, 1e-6)) << name << y;
  }
}

TEST(Rope, TurnsPairsByTheAngleOfThePositionAndBackAgain) {
  const at::Tensor x = sample({6, 2, 3, 8}, 5);
  for (const int64_t rotary : {8, 4}) {
    nn::RopeTable table(rotary, 100.0, {});
    at::Tensor y = x.clone();
    table.rotate(y, {2, {}, 0}, 1);
    const int64_t half = rotary / 2;
    const at::Tensor inverse = at::pow(100.0, -at::arange(0, rotary, 2, at::kDouble) / static_cast<double>(rotary));
    const at::Tensor angle = at::outer(at::arange(2, 8, at::kDouble), inverse).view({6, 1, 1, half});
    const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
    EXPECT_LT(relative_difference(y.narrow(3, 0, half), a * angle.cos() - b * angle.sin()), kDouble);
    EXPECT_LT(relative_difference(y.narrow(3, half, half), b * angle.cos() + a * angle.sin()), kDouble);
    EXPECT_TRUE(at::equal(y.narrow(3, rotary, 8 - rotary), x.narrow(3, rotary, 8 - rotary)));
    table.rotate(y, {2, {}, 0}, -1);
    EXPECT_LT(relative_difference(y, x), kDouble);
  }
}

// Interleaved pairs are the two halves of the same head in another order.
TEST(Rope, InterleavedPairsTurnAsHalvesDo) {
  const at::Tensor x = sample({6, 2, 3, 10}, 5);
  for (const int64_t rotary : {8, 6, 2}) {
    const at::Tensor order = at::cat({at::arange(0, rotary, 2, at::kLong), at::arange(1, rotary, 2, at::kLong),
                                      at::arange(rotary, 10, at::kLong)});
    at::Tensor halves = x.index_select(3, order), pairs = x.clone();
    nn::RopeTable(rotary, 100.0, {}).rotate(halves, {2, {}, 0}, 1);
    nn::RopeTable table(nn::RopeSpec{.dims = rotary, .base = 100.0, .interleaved = true}, {});
    table.rotate(pairs, {2, {}, 0}, 1);
    EXPECT_LT(relative_difference(pairs.index_select(3, order), halves), kDouble) << rotary;
    table.rotate(pairs, {2, {}, 0}, -1);
    EXPECT_LT(relative_difference(pairs, x), kDouble);
  }
}

TEST(Rope, AmplitudeAndInterpolationAreOfAnglesAndOfBothWays) {
  const at::Tensor x = sample({6, 1, 2, 8}, 5);
  nn::RopeTable table(nn::RopeSpec{.dims = 8, .base = 100.0, .interpolation = 2, .amplitude = 3}, {});
  at::Tensor y = x.clone();
  table.rotate(y, {0, {}, 0}, 1);
  EXPECT_LT(relative_difference(y.select(0, 0), 3 * x.select(0, 0)), kDouble);
  at::Tensor fourth = x.narrow(0, 4, 1).clone();
  nn::RopeTable(8, 100.0, {}).rotate(fourth, {2, {}, 0}, 1);
  EXPECT_LT(relative_difference(y.narrow(0, 4, 1), 3 * fourth), kDouble);
  table.rotate(y, {0, {}, 0}, -1);
  EXPECT_LT(relative_difference(y, 9 * x), kDouble);
}

TEST(Dropout, KeepsTheRightShareScaledAndIgnoresHowRowsAreCut) {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(0, at::tensor({7, 8}, at::kLong));
  for (const int64_t width : {64, 37}) {
    const nn::BiasDropoutAdd how{{5, 2, nn::RandomSite::mlp_output, 0.25, {}}, nullptr, {0}};
    const at::Tensor mask = nn::bias_dropout_add(at::ones({400, 2, width}, at::kDouble), {}, how, batch);
    EXPECT_TRUE(at::logical_or(mask == 0, (mask - 1 / 0.75).abs() < 1e-15).all().item<bool>());
    EXPECT_NEAR(mask.mean().item<double>(), 1.0, 5 * std::sqrt(0.25 / 0.75 / static_cast<double>(mask.numel())));
    nn::BiasDropoutAdd later = how;
    later.location.first_row = 100;
    EXPECT_TRUE(at::equal(nn::bias_dropout_add(at::ones({300, 2, width}, at::kDouble), {}, later, batch),
                          mask.narrow(0, 100, 300)));
    EXPECT_TRUE(at::equal(nn::bias_dropout_add(at::ones({400, 2, width}, at::kFloat), {}, how, batch).to(at::kBool),
                          mask.to(at::kBool)));
    nn::Microbatch second = batch;
    second.counters.samples = nn::make_sample_counters(0, at::tensor({8}, at::kLong));
    EXPECT_TRUE(at::equal(nn::bias_dropout_add(at::ones({400, 1, width}, at::kDouble), {}, how, second),
                          mask.narrow(1, 1, 1)));
    for (const int which : {0, 1, 2}) {
      nn::BiasDropoutAdd other = how;
      other.key.layer += which == 0 ? 1 : 0;
      other.key.seed += which == 1 ? 1 : 0;
      other.key.site = which == 2 ? nn::RandomSite::attention_output : other.key.site;
      EXPECT_FALSE(at::equal(nn::bias_dropout_add(at::ones({400, 2, width}, at::kDouble), {}, other, batch), mask));
    }
  }
}

TEST(Dropout, GradientsOfInputBiasAndResidualFollowTheMask) {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(0, at::tensor({7, 8, 9}, at::kLong));
  nn::Param bias = nn::make_param({"b", {20}, {}, nn::Init::normal}, layer_context());
  give_main_grad({&bias});
  const nn::DropoutKey key{5, 2, nn::RandomSite::attention_output, 0.4, {}};
  const at::Tensor mask = nn::bias_dropout_add(at::ones({4, 3, 20}, at::kDouble), {}, {key, nullptr, {0}}, batch);
  const at::Tensor x = leaf(sample({4, 3, 20}, 1)), residual = leaf(sample({4, 3, 20}, 2)),
                   dy = sample({4, 3, 20}, 3);
  const at::Tensor temporary =
      nn::attach(x.detach().clone(), {x}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
  const at::Tensor y = nn::bias_dropout_add(temporary, residual, {key, &bias, {0}}, batch);
  EXPECT_LT(relative_difference(y, residual + mask * (x + bias.data)), kDouble);
  const auto got = torch::autograd::grad({y}, {x, residual}, {dy});
  EXPECT_LT(relative_difference(got[0], dy * mask), kDouble);
  EXPECT_TRUE(at::equal(got[1], dy));
  EXPECT_LT(relative_difference(bias.main_grad, (dy * mask).sum(at::IntArrayRef{0, 1})), kDouble);
}

TEST(CrossEntropy, LossAndGradientAreThoseOfLogSoftmaxWithPaddingLeftOut) {
  for (const double smoothing : {0.0, 0.2}) {
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      const at::Tensor logits = sample({3, 4, 40}, 1, dtype) * 8,
                       targets = at::arange(12, at::kLong).view({3, 4}) * 3;
      const at::Tensor x = leaf(logits.to(at::kDouble)), mine = leaf(logits), dy = sample({3, 4}, 2, dtype);
      const at::Tensor log_p = at::log_softmax(x.narrow(2, 0, 37), -1);
      const double s = smoothing * 37 / 36;
      const at::Tensor expected = -(1 - s) * log_p.gather(2, targets.unsqueeze(2)).squeeze(2) - s * log_p.mean(-1);
      const at::Tensor temporary =
          nn::attach(mine.detach().clone(), {mine}, [](const at::Tensor& d) -> nn::Gradients { return {d}; });
      const at::Tensor got = nn::vocab_parallel_cross_entropy(
          temporary, targets, {{}, nn::make_vocabulary_shard(37, 40, 1, 0), 37, smoothing, {}});
      const double tolerance = dtype == at::kDouble ? kDouble : 1e-6;  // fp32: sums of 37 terms
      EXPECT_LT(relative_difference(got, expected), tolerance);
      EXPECT_LT(relative_difference(gradient(got, mine, dy), gradient(expected, x, dy.to(at::kDouble))), tolerance);
    }
  }
}

TEST(CrossEntropy, ANanInTheLogitsBecomesANanLoss) {
  at::Tensor logits = at::zeros({2, 50});
  logits[1][3] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor loss = nn::vocab_parallel_cross_entropy(logits, at::zeros({2}, at::kLong),
                                                           {{}, nn::make_vocabulary_shard(50, 50, 1, 0), 50, 0, {}});
  EXPECT_FALSE(std::isnan(loss[0].item<double>()));
  EXPECT_TRUE(std::isnan(loss[1].item<double>()));
}

}  // namespace
}  // namespace metroplex::test::kernels_test
