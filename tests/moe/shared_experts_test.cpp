// The gate of shared experts.
#include "moe/shared_experts.h"

#include <cmath>

#include "nn/tools.h"
#include "nn/wide.h"

namespace metroplex::test::shared_experts_test {
namespace {

constexpr int64_t kHidden = 24;

config::Model model_with_gate(bool gate) {
  config::Model model;
  model.hidden_size = kHidden;
  model.moe_shared_expert_intermediate_size = 16;
  model.add_bias_linear = false;
  model.moe_shared_expert_gate = gate;
  return model;
}

// Distance of a number from the midpoint of two neighboring bf16 numbers (8 bits), in units of their distance.
double from_a_tie(double x) {
  int exponent = 0;
  const double scaled = std::ldexp(std::frexp(std::abs(x), &exponent), 8);
  return std::abs(scaled - std::floor(scaled) - 0.5);
}

// The gradient of the gate's logit is rounded to bf16 once, after a sum in fp32. With one token whose first element
// is 1 it is the first element of the gate's gradient. Numbers close to a tie could round either way.
TEST(SharedExperts, GateGradientIsSummedInFp32) {
  nn::LayerContext context = layer_context({}, false, at::kBFloat16);
  moe::SharedExperts gated("shared", model_with_gate(true), context),
      plain("shared", model_with_gate(false), context);
  std::vector<nn::Param*> params, same;
  gated.collect_params(params);
  plain.collect_params(same);
  give_main_grad(params);
  nn::Param* const gate = *std::find_if(params.begin(), params.end(),
                                        [](const nn::Param* param) { return param->name == "shared.gate_weight"; });
  gate->data.copy_(sample({1, kHidden}, 2));
  int compared = 0;
  for (uint64_t token = 0; token < 40; ++token) {
    const at::Tensor x = sample({1, 1, kHidden}, 10 + token, at::kBFloat16);
    x.view(-1)[0] = 1;
    x.requires_grad_();
    const at::Tensor dy = sample({1, 1, kHidden}, 90 + token, at::kBFloat16);
    gate->main_grad.zero_();
    gated.forward(x, {}).backward(dy);
    at::Tensor out;
    {
      const at::NoGradGuard no_grad;
      out = plain.forward(x.detach(), {});
    }
    const double score = at::sigmoid((x.detach().matmul(gate->data.t())).to(at::kFloat)).item<double>();
    const double logit = at::mul(dy, out).to(at::kDouble).sum().item<double>() * score * (1 - score);
    if (from_a_tie(logit) < 1.0 / 64) continue;  // fp32 is off by at most 24 x 2^-24 of the sum of sizes
    const double rounded = at::scalar_tensor(logit, at::kDouble).to(at::kBFloat16).item<double>();
    EXPECT_EQ(gate->main_grad[0][0].item<double>(), rounded) << token;
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

}  // namespace
}  // namespace metroplex::test::shared_experts_test
