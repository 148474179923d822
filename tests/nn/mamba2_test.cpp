// A Mamba-2 layer in float64: its result against the recurrence written out for one row after the other, and the
// gradients of its input and of all parameters against finite differences.
#include "nn/mamba2.h"

#include <cmath>
#include <map>
#include <string>

#include "nn/finite_differences.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::mamba2_test {
namespace {

constexpr int64_t kRows = 7, kSamples = 2, kHidden = 6;

config::Model small_model() {
  config::Model model;
  model.num_layers = 1, model.hidden_size = kHidden, model.hybrid_layer_pattern = "M";
  model.mamba_num_groups = 2, model.mamba_num_heads = 4, model.mamba_head_dim = 3, model.mamba_state_dim = 2;
  model.mamba_conv_kernel_dim = 3, model.mamba_chunk_size = 3, model.mamba_proj_bias = true;
  model.mamba_dt_min = 0.2, model.mamba_dt_max = 0.9;
  return model;
}

struct Layer {
  nn::Mamba2 mamba{{"m", 0}, small_model(), layer_context()};
  std::vector<nn::Param*> params;
  std::map<std::string, nn::Param*> by_name;
  nn::Microbatch batch;

  Layer() {
    mamba.collect_params(params);
    give_main_grad(params);
    for (nn::Param* param : params) {
      by_name[param->name.substr(2)] = param;
      nn::fill(*param, [param](int64_t i) {
        return 0.5 * std::sin(2.3 * static_cast<double>(i) + static_cast<double>(param->name.size()));
      });
    }
    batch.documents.ids = at::tensor({0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 2, 2}, at::kLong).view({kSamples, kRows});
  }
  at::Tensor value(const char* name) const { return by_name.at(name)->data; }
  // Without out_proj's bias, which the caller adds.
  at::Tensor forward(const at::Tensor& x) { return mamba.forward(x, batch); }
};

// One row after the other, in the notation of the paper.
at::Tensor forward_by_rows(const Layer& layer, const at::Tensor& x) {
  const int64_t inner = 12, states = 4, heads = 4;
  const at::Tensor in = at::matmul(x, layer.value("in_proj.weight").t()) + layer.value("in_proj.bias");
  const at::Tensor weight = layer.value("conv1d.weight").squeeze(1), rate = -layer.value("A_log").exp();
  at::Tensor out = at::zeros({kRows, kSamples, inner}, at::kDouble);
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    at::Tensor state = at::zeros({heads, 3, 2}, at::kDouble);
    for (int64_t row = 0; row < kRows; ++row) {
      const auto same = [&](int64_t other) {
        return other >= 0 && layer.batch.documents.ids[sample][other].item<int64_t>() ==
                                 layer.batch.documents.ids[sample][row].item<int64_t>();
      };
      if (!same(row - 1)) state = at::zeros_like(state);
      at::Tensor sum = layer.value("conv1d.bias").clone();
      for (int64_t tap = 0; tap < 3; ++tap)
        if (same(row - 2 + tap))
          sum += weight.select(1, tap) * in[row - 2 + tap][sample].narrow(0, inner, inner + 2 * states);
      const at::Tensor mixed = at::silu(sum);
      const at::Tensor raw = in[row][sample].narrow(0, 2 * inner + 2 * states, heads) + layer.value("dt_bias");
      const at::Tensor dt = at::log1p(raw.exp()).clamp(0.2, 0.9);
      for (int64_t head = 0; head < heads; ++head) {
        const at::Tensor xs = mixed.narrow(0, 3 * head, 3), in_vector = mixed.narrow(0, inner + head / 2 * 2, 2),
                         out_vector = mixed.narrow(0, inner + states + head / 2 * 2, 2);
        state[head].copy_(state[head] * (dt[head] * rate[head]).exp() + dt[head] * at::outer(xs, in_vector));
        out[row][sample].narrow(0, 3 * head, 3).copy_(at::mv(state[head], out_vector) + layer.value("D")[head] * xs);
      }
      const at::Tensor gated = (out[row][sample] * at::silu(in[row][sample].narrow(0, 0, inner))).view({2, 6});
      const at::Tensor rms = (gated.square().mean(1, true) + 1e-5).sqrt();
      out[row][sample].copy_((gated / rms).flatten() * layer.value("norm.weight"));
    }
  }
  return at::matmul(out, layer.value("out_proj.weight").t());
}

// Sums of up to 24 terms of size 1, along 7 rows.
TEST(Mamba2, EqualsItsFormulaRowByRow) {
  Layer layer;
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 1);
  EXPECT_LT(relative_difference(layer.forward(x), forward_by_rows(layer, x)), 1e-13);
}

// Time steps at a limit have no gradient; none is nearer to a limit than the step.
TEST(Mamba2, GradientsEqualFiniteDifferences) {
  Layer layer;
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 1), dy = sample({kRows, kSamples, kHidden}, 2);
  const at::Tensor leaf = x.clone().requires_grad_(true);
  const at::Tensor dx = torch::autograd::grad({layer.forward(leaf)}, {leaf}, {dy})[0];
  const auto loss = [&] { return (layer.forward(x) * dy).sum().item<double>(); };
  expect_finite_difference("x", dx, x, loss);
  for (const auto& [name, param] : layer.by_name)
    if (name != "out_proj.bias") expect_finite_difference(name, param->main_grad, param->data, loss);
}

TEST(Mamba2, InitialValuesAreThoseOfMegatron) {
  config::Model model = small_model();
  model.mamba_num_heads = 400, model.mamba_proj_bias = false;
  nn::Mamba2 mamba({"m", 0}, model, layer_context());
  std::vector<nn::Param*> params;
  mamba.collect_params(params);
  for (nn::Param* param : params) {
    const at::Tensor data = param->data;
    if (param->name == "m.A_log") {
      EXPECT_GE(data.min().item<double>(), 0);
      EXPECT_LE(data.max().item<double>(), std::log(16));
      // The mean of 400 numbers from 1 to 16: five standard deviations of 15 / sqrt(12 * 400).
      EXPECT_NEAR(data.exp().mean().item<double>(), 8.5, 1.1);
    }
    if (param->name == "m.dt_bias") {
      const at::Tensor steps = at::log1p(data.exp());
      EXPECT_GE(steps.min().item<double>(), 0.000999);
      EXPECT_LE(steps.max().item<double>(), 0.100001);
      // A share of ln(1.5) / ln(100) = 0.088 is below 0.0015, and as many are above 0.0667.
      EXPECT_LT(steps.min().item<double>(), 0.0015);
      EXPECT_GT(steps.max().item<double>(), 0.0667);
      // The mean logarithm is that of 0.01: five standard deviations of ln(100) / sqrt(12 * 400).
      EXPECT_NEAR(steps.log().mean().item<double>(), std::log(0.01), 0.34);
    }
    if (param->name == "m.D") { EXPECT_TRUE(at::equal(data, at::ones_like(data))); }
  }
}

}  // namespace
}  // namespace metroplex::test::mamba2_test
