// The router of one rank against plain formulas in torch's autograd, in float64; number formats; values that count
// once.
#include "moe/router.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "moe/balance.h"
#include "moe/noise.h"
#include "moe/router_tools.h"

namespace metroplex::test::router_test {
namespace {

using config::ScoreFunction;

constexpr int64_t kRows = 12, kSamples = 2, kTokens = kRows * kSamples, kExperts = 8, kHidden = 12;
constexpr double kFactor = 0.37;  // of the loss terms

// A sum of kTokens rows of products of kHidden numbers, a few dozen roundings each.
constexpr double kRounding = 1e-13;

config::Model make_model(ScoreFunction function) {
  config::Model model = router_model(kExperts, 2, kHidden);
  model.moe_router_score_function = function;
  return model;
}

at::Tensor input(at::ScalarType type = at::kDouble) { return sample({kRows, kSamples, kHidden}, 1, type); }
at::Tensor weights() { return sample({kTokens, kExperts}, 2); }

struct Plain {
  PlainRouting routing;
  std::map<std::string, at::Tensor> terms;
  at::Tensor dx, dweight, dbias;
};

// Loss terms times `tokens`, by which the head's losses are divided.
Plain plain(const config::Model& model, const TestRouter& of, const at::Tensor& x_sbh, double tokens) {
  const auto leaf = [](const at::Tensor& x) { return x.detach().to(at::kDouble).clone().requires_grad_(true); };
  const at::Tensor x = leaf(x_sbh), w = leaf(of.params[0]->data),
                   b = model.add_bias_linear ? leaf(of.params[1]->data) : at::zeros({kExperts}, at::kDouble);
  const at::Tensor logits = at::matmul(x.view({-1, kHidden}), w.t()) + b;
  const moe::TopKRule rule = moe::topk_rule(model);
  Plain out;
  out.routing = plain_route(logits, rule, of.buffers.empty() ? at::Tensor() : of.buffers[0]->data);
  for (const config::AuxLoss& loss : config::aux_losses(model)) {
    if (loss.type == config::AuxLossType::aux_loss)
      out.terms["load_balancing_loss"] = plain_balance(logits, rule, loss.coeff) * tokens;
    if (loss.type == config::AuxLossType::global_aux_loss)
      out.terms["global_load_balancing_loss"] = plain_balance(logits, rule, loss.coeff) * tokens;
    if (loss.type != config::AuxLossType::seq_aux_loss) continue;
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (int64_t i = 0; i < kSamples; ++i)
      sum = sum + plain_balance(logits.view({kRows, kSamples, kExperts}).select(1, i), rule, loss.coeff);
    out.terms["seq_load_balancing_loss"] = sum / static_cast<double>(kSamples) * tokens;
  }
  if (model.moe_z_loss_coeff > 0) out.terms["z_loss"] = plain_z_loss(logits, model.moe_z_loss_coeff) * tokens;
  at::Tensor loss = (out.routing.probs * weights()).sum();
  for (const auto& [name, term] : out.terms) loss = loss + kFactor * term;
  std::vector<at::Tensor> leaves{x, w};
  if (model.add_bias_linear) leaves.push_back(b);
  const auto gradients = torch::autograd::grad({loss}, leaves);
  out.dx = gradients[0];
  out.dweight = gradients[1];
  if (model.add_bias_linear) out.dbias = gradients[2];
  return out;
}

void expect_plain(const config::Model& model, const moe::ExpertContext& experts) {
  TestRouter router(model, layer_context(), experts);
  if (!router.buffers.empty()) router.buffers[0]->data.copy_(sample({kExperts}, 77).mul(0.3));
  const nn::Microbatch batch = microbatch(kRows, kSamples);
  const RouterRun got = router.run(input(), batch, weights(), kFactor);
  const Plain wanted = plain(model, router, input(), experts.per_token_loss ? kTokens : batch.mask_sum);
  EXPECT_TRUE(got.map.equal(wanted.routing.map));
  EXPECT_LE(largest(got.probs - wanted.routing.probs), kRounding);
  ASSERT_EQ(got.terms.size(), wanted.terms.size());
  for (const auto& [name, term] : wanted.terms) {
    ASSERT_EQ(got.terms.count(name), 1U) << name;
    EXPECT_LE(relative_difference(got.terms.at(name), term), kRounding) << name;
  }
  EXPECT_LE(relative_difference(got.dx, wanted.dx), kRounding);
  EXPECT_LE(relative_difference(router.params[0]->main_grad, wanted.dweight), kRounding);
  if (model.add_bias_linear) { EXPECT_LE(relative_difference(router.params[1]->main_grad, wanted.dbias), kRounding); }
}

TEST(Router, ProbabilitiesLossesAndGradientsArePlainFormulas) {
  for (const ScoreFunction function : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::sqrtsoftplus}) {
    for (const bool per_token : {false, true}) {
      SCOPED_TRACE(base::concat("function ", static_cast<int>(function), " per token ", per_token));
      moe::ExpertContext experts;
      experts.per_token_loss = per_token;
      config::Model model = make_model(function);
      expect_plain(model, experts);
      model.add_bias_linear = true;
      model.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
      model.moe_aux_loss_coeff = "0.7,0.5,0.3";
      model.moe_z_loss_coeff = 0.2;
      expect_plain(model, experts);
      model.moe_router_load_balancing_type = "seq_aux_loss";
      model.moe_aux_loss_coeff = "0.5";
      model.moe_router_num_groups = 4;
      model.moe_router_enable_expert_bias = function != ScoreFunction::softmax;
      // With one group of experts, a token's experts often differ from its k best, which the loss counts.
      for (const int64_t groups : {1, 2}) {
        model.moe_router_group_topk = groups;
        expect_plain(model, experts);
      }
      model.moe_router_load_balancing_type = "none";
      model.moe_aux_loss_coeff = "0";
      expect_plain(model, experts);
    }
  }
}

// More rows than the kernel sums at once, and samples interleaved across its chunks.
TEST(Router, SumsOverManyRowsArePlainSumsWithTheirGradient) {
  for (const ScoreFunction function : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::sqrtsoftplus}) {
    for (const int64_t samples : {1, 7}) {
      const at::Tensor values = sample({77, 5}, 4).mul(3), weights = sample({samples * 5 + 1}, 6);
      const at::Tensor y = values.clone().requires_grad_(true);
      const at::Tensor experts = at::arange(77 * 2).mul_(3).remainder_(6).sub_(1).view({77, 2});  // -1 to 4
      const kernels::BalanceShape shape{77, 5, samples, moe::balance_score(function), true};
      const at::Tensor mask = sample({19}, 5), scale = at::full({}, 1.5, at::kDouble);
      const at::Tensor sums = moe::balance_sums({}, values, shape, experts, mask),
                       got = sums.narrow(0, samples * 5, samples * 5 + 1);
      const at::Tensor scores = plain_scores(y, function), shares = scores / scores.sum(-1, true);
      const at::Tensor wanted =
          at::cat({shares.view({-1, samples, 5}).sum(0).view({-1}), y.exp().sum(-1).log().square().sum().view({1})});
      EXPECT_LE(relative_difference(got, wanted), kRounding);
      EXPECT_TRUE(sums.narrow(0, 0, samples * 5)
                      .equal(moe::tokens_per_expert(experts, 5, samples).reshape({-1}).to(at::kDouble)));
      // 19 additions in another order.
      EXPECT_NEAR(sums[sums.numel() - 1].item<double>(), mask.sum().item<double>(),
                  19 * 0x1p-53 * mask.abs().sum().item<double>());
      EXPECT_LE(relative_difference(moe::balance_gradient({}, values, weights, scale, shape),
                                    torch::autograd::grad({(wanted * weights).sum() * 1.5}, {y})[0]),
                kRounding);
    }
  }
}

TEST(Router, AMaskWithoutTokensStillCountsAsOneToken) {
  config::Model model = make_model(ScoreFunction::softmax);
  model.moe_z_loss_coeff = 0.2;
  TestRouter router(model, layer_context());
  nn::Microbatch batch = microbatch(kRows, kSamples);
  batch.loss_mask.zero_();
  const RouterRun got = router.run(input(), batch, weights());
  EXPECT_LE(relative_difference(got.terms.at("z_loss"), plain(model, router, input(), 1).terms.at("z_loss")),
            kRounding);
}

// fp32 logits of inputs in `type`: the products are exact, the sums are not.
TEST(Router, HalfFormatsRouteInFloat) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool fp64 : {false, true}) {
      config::Model model = make_model(ScoreFunction::softmax);
      model.moe_z_loss_coeff = 0.2;
      model.moe_aux_loss_coeff = "0.5";
      if (fp64) model.moe_router_dtype = config::RouterDtype::fp64;
      TestRouter router(model, layer_context({}, false, type));
      const nn::Microbatch batch = microbatch(kRows, kSamples);
      const RouterRun got = router.run(input(type), batch, weights(), kFactor);
      const Plain wanted = plain(model, router, input(type), batch.mask_sum);
      EXPECT_EQ(got.routing.probs.scalar_type(), fp64 ? at::kDouble : at::kFloat);
      EXPECT_EQ(got.dx.scalar_type(), type);
      // Sums of kHidden products and kTokens rows in units of 2^-24; the gradient of x is rounded to its type, and
      // fp16 parameter gradients too.
      const double rounding = fp64 ? kRounding : std::ldexp(kTokens + kHidden + 40, -24);
      const double of_type = type == at::kBFloat16 ? std::ldexp(1, -8) : type == at::kHalf ? std::ldexp(1, -11) : 0;
      const double of_main = fp64 ? std::ldexp(1, -23) : 0;  // main gradients are fp32
      EXPECT_TRUE(got.map.equal(wanted.routing.map));
      EXPECT_LE(largest(got.probs - wanted.routing.probs), rounding);
      for (const auto& [name, term] : wanted.terms)
        EXPECT_LE(relative_difference(got.terms.at(name), term), rounding) << name;
      EXPECT_LE(relative_difference(got.dx, wanted.dx), rounding + of_type + of_main);
      EXPECT_LE(relative_difference(router.params[0]->main_grad, wanted.dweight),
                rounding + of_main + (type == at::kHalf ? of_type : 0));
    }
  }
}

TEST(Router, DroppedTokensHaveNoProbabilityAndNoGradientButCountInTheLosses) {
  config::Model model = make_model(ScoreFunction::softmax);
  model.moe_expert_capacity_factor = 0.6;
  model.moe_aux_loss_coeff = "0.5";
  for (const config::DropPolicy policy : {config::DropPolicy::probs, config::DropPolicy::position}) {
    model.moe_token_drop_policy = policy;
    TestRouter router(model, layer_context());
    const nn::Microbatch batch = microbatch(kRows, kSamples);
    const RouterRun got = router.run(input(), batch, weights(), 0);
    const int64_t capacity = config::expert_capacity(model, kTokens);
    EXPECT_EQ(capacity, 4);  // 24 * 2 / 8 * 0.6 = 3.6
    EXPECT_LE(got.map.sum(0).max().item<int64_t>(), capacity);
    EXPECT_TRUE(got.routing.experts.eq(-1).any().item<bool>());
    EXPECT_TRUE(got.routing.probs.masked_select(got.routing.experts.eq(-1)).eq(0).all().item<bool>());
    config::Model dropless = model;
    dropless.moe_expert_capacity_factor = 0;
    TestRouter other(dropless, layer_context());
    const RouterRun all = other.run(input(), batch, weights() * got.map, 0);
    EXPECT_TRUE(got.probs.equal(all.probs * got.map));
    EXPECT_TRUE(got.dx.equal(all.dx));
    EXPECT_TRUE(router.params[0]->main_grad.equal(other.params[0]->main_grad));
    EXPECT_TRUE(got.terms.at("load_balancing_loss").equal(all.terms.at("load_balancing_loss")));
  }
}

TEST(Router, CountsOnceAForwardThatCounts) {
  config::Model model = make_model(ScoreFunction::sigmoid);
  model.moe_router_enable_expert_bias = true;
  model.moe_expert_capacity_factor = 0.6;
  moe::ExpertContext experts;
  experts.meter = std::make_shared<moe::LoadMeter>(kExperts, device::Target());
  TestRouter router(model, layer_context(), experts, 5);
  nn::Microbatch batch = microbatch(kRows, kSamples);
  const at::Tensor counts = router.run(input(), batch, weights()).map.sum(0);
  nn::RecomputeMemo memo;
  router.run(input(), batch, weights(), 1, &memo);
  batch.training = false;
  nn::SegmentContext evaluation{batch, false, {}};
  router.router.forward(input(), evaluation);
  EXPECT_TRUE(evaluation.terms.empty());
  nn::Buffer& bias = *router.buffers.at(0);
  EXPECT_EQ(bias.name, "router.expert_bias");
  EXPECT_TRUE(bias.pending.equal(counts)) << "dropped assignments, repetitions and evaluation do not count";
  ASSERT_EQ(experts.meter->layers().size(), 1U);
  EXPECT_TRUE(experts.meter->layer(5).tokens.equal(counts));
  EXPECT_EQ(experts.meter->layer(5).dropped.item<int64_t>(), kTokens * 2 - counts.sum().item<int64_t>());
  bias.apply(bias);
  const double mean = counts.to(at::kDouble).mean().item<double>();
  for (int64_t e = 0; e < kExperts; ++e) {
    const double above = counts[e].item<double>() - mean;
    EXPECT_DOUBLE_EQ(bias.data[e].item<double>(), above > 0 ? -1e-3 : above < 0 ? 1e-3 : 0) << e;
  }
}

TEST(Router, TheGlobalLossGoesOnOverTheMicrobatchesOfAStep) {
  config::Model model = make_model(ScoreFunction::softmax);
  model.moe_router_load_balancing_type = "global_aux_loss";
  model.moe_aux_loss_coeff = "0.5";
  TestRouter router(model, layer_context());
  const moe::TopKRule rule = moe::topk_rule(model);
  ASSERT_EQ(router.counts.size(), 1U);
  for (const int64_t step : {7, 8}) {
    router.counts[0].zero_();  // as at the start of a step
    std::vector<nn::Microbatch> batches;
    std::vector<nn::RecomputeMemo> memos(3);
    std::vector<at::Tensor> first;
    at::Tensor sum = at::zeros({kExperts}, at::kDouble);
    for (int64_t m = 0; m < 3; ++m) {
      batches.push_back(microbatch(kRows, kSamples, 2 * m, step));
      const at::Tensor x = sample({kRows, kSamples, kHidden}, static_cast<uint64_t>(10 * step + m));
      {
        const at::NoGradGuard no_grad;
        nn::SegmentContext context{batches.back(), false, {}, &memos[static_cast<size_t>(m)]};
        router.router.forward(x, context);
        first.push_back(context.terms.at(0).sum);
      }
      const at::Tensor logits = at::matmul(x.view({-1, kHidden}), router.params[0]->data.t());
      sum = sum + plain_map(logits, rule).sum(0);
      const at::Tensor wanted = plain_balance(logits, rule, 0.5, sum / static_cast<double>(m + 1));
      EXPECT_LE(relative_difference(first.back(), wanted * batches.back().mask_sum), kRounding) << m;
    }
    // Backward recomputes them in any order with the first pass's counts, without counting again.
    for (const size_t m : {2, 0, 1}) {
      const nn::Microbatch copy = batches[m];
      const at::Tensor x = sample({kRows, kSamples, kHidden}, static_cast<uint64_t>(10 * step) + m);
      const RouterRun again = router.run(x, copy, weights(), 1, &memos[m]);
      EXPECT_TRUE(again.terms.at("global_load_balancing_loss").equal(first[m])) << m;
    }
  }
}

TEST(Router, JitterIsAFunctionOfPlaceAndEndsWithTraining) {
  config::Model model = make_model(ScoreFunction::softmax);
  model.moe_input_jitter_eps = 0.25;
  TestRouter router(model, layer_context());
  nn::Microbatch batch = microbatch(kRows, kSamples, 4, 9);
  // The gradient reveals the factors: for a linear function of the logits it is W^T times them.
  const moe::RowNoise noise(3, nn::RandomSite::router_input, layer_context());
  const at::Tensor u = noise.draw(moe::Noise::uniform, noise.rows(input(), batch), at::kDouble);
  const at::Tensor factors = 1 + 0.25 * (2 * u - 1);
  EXPECT_GT(u.min().item<double>(), 0);
  EXPECT_LT(u.max().item<double>(), 1);
  // The mean of n uniform numbers is within 5 / sqrt(12 n) of one half except in one case in a million.
  EXPECT_NEAR(u.mean().item<double>(), 0.5, 5 / std::sqrt(12.0 * u.numel()));
  const RouterRun got = router.run(input(), batch, weights());
  nn::RecomputeMemo memo;
  const RouterRun again = router.run(input(), batch, weights(), 1, &memo);
  EXPECT_TRUE(got.probs.equal(again.probs));
  EXPECT_TRUE(got.dx.equal(again.dx));
  config::Model plain_model = model;
  plain_model.moe_input_jitter_eps = 0;
  TestRouter other(plain_model, layer_context());
  const RouterRun wanted = other.run(input() * factors.view({kRows, kSamples, kHidden}), batch, weights());
  EXPECT_LE(largest(got.probs - wanted.probs), kRounding);
  EXPECT_LE(relative_difference(got.dx, wanted.dx * factors.view(wanted.dx.sizes())), kRounding);
  EXPECT_LE(relative_difference(router.params[0]->main_grad, 2 * other.params[0]->main_grad), kRounding);
  const nn::Microbatch next_step = microbatch(kRows, kSamples, 4, 10);
  EXPECT_FALSE(got.probs.equal(router.run(input(), next_step, weights()).probs));
  batch.training = false;
  EXPECT_TRUE(router.run(input(), batch, weights()).probs.equal(other.run(input(), batch, weights()).probs));
}

TEST(Router, StateOnTheMetaDeviceHasShapesOnly) {
  config::Model model = make_model(ScoreFunction::sigmoid);
  model.add_bias_linear = model.moe_router_enable_expert_bias = true;
  model.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
  model.moe_aux_loss_coeff = "0.7,0.5,0.3";
  model.moe_z_loss_coeff = 0.2;
  model.moe_input_jitter_eps = 0.1;
  model.moe_expert_capacity_factor = 1;
  for (const double skew : {0.0, 1.5}) {
    model.moe_router_force_skew = skew;
    model.moe_router_force_skew_period = 3;
    nn::LayerContext layer = layer_context({}, false, at::kBFloat16);
    layer.target.meta = true;
    moe::Router router("router", 0, model, layer, {});
    std::vector<nn::Param*> params;
    router.collect_params(params);
    for (nn::Param* param : params)
      param->main_grad = at::empty_like(param->data, param->data.options().dtype(at::kFloat));
    nn::Microbatch batch = microbatch(kRows, kSamples);
    for (at::Tensor* tensor : {&batch.tokens, &batch.loss_mask, &batch.counters.samples, &batch.counters.step})
      *tensor = at::empty_like(*tensor, tensor->options().device(at::kMeta));
    const at::AutoGradMode with_grad(true);
    const at::Tensor x =
        at::empty({kRows, kSamples, kHidden}, at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta))
            .requires_grad_(true);
    nn::SegmentContext context{batch, false, {}};
    const moe::Routing routing = router.forward(x, context);
    EXPECT_EQ(routing.experts.sizes(), (std::vector<int64_t>{kTokens, 2}));
    EXPECT_EQ(routing.probs.scalar_type(), at::kFloat);
    EXPECT_EQ(context.terms.size(), 4U);
    at::Tensor loss = routing.probs.sum();
    for (const nn::LossTerm& term : context.terms) loss = loss + term.sum;
    EXPECT_EQ(torch::autograd::grad({loss}, {x})[0].sizes(), x.sizes());
  }
}

}  // namespace
}  // namespace metroplex::test::router_test
