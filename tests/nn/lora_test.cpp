// Adapters of one layer on one rank: their gradients, and one dropout mask per adapter.
#include "nn/lora.h"

#include <cmath>

#include "nn/tools.h"

namespace metroplex::test::lora_test {
namespace {

constexpr int64_t kTokens = 5, kIn = 12, kRank = 2, kBoxRows = 4;

struct Fixture {
  nn::Adapters adapters;
  std::vector<nn::Param*> params;  // A and B of the first adapter, A and B of the second
  nn::Microbatch batch;
  at::Tensor x = sample({kTokens, 1, kIn}, 1);

  Fixture() {
    nn::LayerContext context = layer_context();
    context.peft.lora_rank = kRank, context.peft.lora_alpha = 3, context.peft.lora_dropout = 0.5;
    adapters = nn::Adapters(
        {.linear = "decoder.layers.0.mlp.linear_fc1",
         .in_features = kIn,
         .boxes = {{"gate_proj", 1, 2 * kBoxRows, 0, kBoxRows}, {"up_proj", 1, 2 * kBoxRows, kBoxRows, kBoxRows}},
         .split = nn::LinearSplit::none},
        context);
    adapters.collect_params(params);
    give_main_grad(params);
    uint64_t seed = 3;
    for (nn::Param* param : params) param->data.copy_(sample(param->data.sizes().vec(), ++seed));
    batch.counters.samples = nn::make_sample_counters(3, at::tensor({7}, at::kLong));
  }

  nn::AdapterRows rows() const { return adapters.rows(x.sizes(), 0, batch); }
  at::Tensor outputs() const {
    const at::Tensor out = at::zeros({kTokens, 1, 2 * kBoxRows}, at::kDouble);
    adapters.add_outputs(out, x, {}, rows());
    return out;
  }
};

// The outputs are linear in A, in B and in x: a change of one element by 1 gives its exact derivative.
at::Tensor derivative(const Fixture& fixture, const at::Tensor& dy, const at::Tensor& of) {
  const at::Tensor result = at::zeros_like(of), before = fixture.outputs();
  for (int64_t i = 0; i < of.numel(); ++i) {
    const at::Tensor element = of.view(-1)[i];
    const at::Tensor value = element.clone();
    element.add_(1);
    result.view(-1)[i] = (dy * (fixture.outputs() - before)).sum();
    element.copy_(value);
  }
  return result;
}

TEST(Lora, GradientsAreDerivativesOfTheOutputs) {
  const Fixture fixture;
  const at::Tensor dy = sample({kTokens, 1, 2 * kBoxRows}, 9), dx = at::zeros_like(fixture.x);
  const at::Tensor out = at::zeros_like(dy);
  const auto kept = fixture.adapters.keep(fixture.adapters.add_outputs(out, fixture.x, {}, fixture.rows()));
  const auto dhidden = fixture.adapters.add_input_gradients(dx, dy, fixture.rows());
  fixture.adapters.accumulate({dy, fixture.x, kept, dhidden}, fixture.rows());
  // Sums of at most 5 x 12 products of size 1: 60 x 2^-53 < 1e-14, ten times that for the difference.
  EXPECT_LT(relative_difference(dx, derivative(fixture, dy, fixture.x)), 1e-13);
  for (const nn::Param* param : fixture.params)
    EXPECT_LT(relative_difference(param->main_grad, derivative(fixture, dy, param->data)), 1e-13) << param->name;
}

TEST(Lora, EachAdapterDropsElementsOfItsOwn) {
  const Fixture fixture;
  fixture.params[2]->data.copy_(fixture.params[0]->data);
  fixture.params[3]->data.copy_(fixture.params[1]->data);
  const at::Tensor out = fixture.outputs();
  EXPECT_FALSE(at::allclose(out.narrow(2, 0, kBoxRows), out.narrow(2, kBoxRows, kBoxRows)));
}

// A magnitude is the length in fp32, and a factor of 1 within 2^-22 leaves every bf16 value as it is.
TEST(Lora, DoraWithTheRowsOwnLengthsChangesNoBit) {
  nn::LayerContext context = layer_context({}, false, at::kBFloat16);
  context.peft.lora_rank = kRank, context.peft.use_dora = true;
  const nn::Adapters adapters({.linear = "decoder.layers.0.mlp.linear_fc2",
                               .in_features = kIn,
                               .boxes = {config::whole_layer("down_proj", kBoxRows)},
                               .split = nn::LinearSplit::none},
                              context);
  const at::Tensor weight = sample({kBoxRows, kIn}, 1, at::kBFloat16),
                   x = sample({kTokens, 1, kIn}, 2, at::kBFloat16),
                   out = sample({kTokens, 1, kBoxRows}, 3, at::kBFloat16), before = out.clone();
  std::vector<nn::Param*> params;
  nn::Adapters(adapters).collect_params(params);
  EXPECT_EQ(params.at(2)->data.scalar_type(), at::kFloat);
  params.at(2)->data.copy_(weight.to(at::kDouble).norm(2, {1}));
  adapters.add_outputs(out, x, weight, {});
  EXPECT_TRUE(at::equal(out, before));
  params.at(2)->data.mul_(2);
  adapters.add_outputs(out, x, weight, {});
  EXPECT_TRUE(at::equal(out, before.mul(2)));
}

}  // namespace
}  // namespace metroplex::test::lora_test
