// Randomly sampled routing: frequencies, their change over steps, and gradients.
#include "moe/forced.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "comm/collectives.h"
#include "moe/router_tools.h"
#include "moe/dense_routing.h"
#include "support/run_ranks.h"

namespace metroplex::test::forced_test {
namespace {

constexpr int64_t kExperts = 16, kRows = 1024, kSamples = 4, kTokens = kRows * kSamples, kHidden = 4;

std::vector<double> zipf(double skew) {
  std::vector<double> p;
  double sum = 0;
  for (int64_t n = 1; n <= kExperts; ++n) sum += std::pow(static_cast<double>(n), -skew);
  for (int64_t n = 1; n <= kExperts; ++n) p.push_back(std::pow(static_cast<double>(n), -skew) / sum);
  return p;
}

// The probability of being one of two sampled without replacement.
double among_two(const std::vector<double>& p, size_t e) {
  double sum = p[e];
  for (size_t first = 0; first < p.size(); ++first) {
    if (first != e) sum += p[first] * p[e] / (1 - p[first]);
  }
  return sum;
}

config::Model forced_model(int64_t k, double skew, int64_t period = 0) {
  config::Model model = router_model(kExperts, k, kHidden);
  model.moe_router_pre_softmax = k == 1;
  model.moe_router_force_load_balancing = skew == 0;
  model.moe_router_force_skew = skew;
  model.moe_router_force_skew_period = period;
  return model;
}

at::Tensor make_counts(const config::Model& model, int64_t step, int64_t layer = 3) {
  TestRouter router(model, layer_context(), {}, layer);
  const nn::Microbatch batch = microbatch(kRows, kSamples, 0, step);
  nn::SegmentContext context{batch, false, {}};
  const at::NoGradGuard no_grad;
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 3);
  return moe::tokens_per_expert(router.router.forward(x, context).experts, kExperts);
}

// A count of n samples with probability p is within 6 standard deviations, sqrt(n p (1 - p)), except in one case in
// 5e8.
TEST(Forced, ExpertsAreDrawnByZipfsLaw) {
  for (const double skew : {0.0, 0.8, 1.5}) {
    const std::vector<double> p = zipf(skew);
    for (const int64_t k : {1, 2}) {
      const at::Tensor counts = make_counts(forced_model(k, skew), 5);
      for (size_t e = 0; e < p.size(); ++e) {
        const double chance = k == 1 ? p[e] : among_two(p, e);
        EXPECT_NEAR(counts[static_cast<int64_t>(e)].item<double>(), kTokens * chance,
                    6 * std::sqrt(kTokens * chance * (1 - chance)))
            << "skew " << skew << " k " << k << " expert " << e;
      }
    }
  }
}

TEST(Forced, EvenLoadIsExact) {
  for (const int64_t k : {1, 2}) {
    config::Model model = forced_model(k, -1);
    model.moe_router_force_skew = 0;
    model.moe_router_force_even = true;
    const at::Tensor counts = make_counts(model, 5);
    EXPECT_EQ(counts.sum().item<int64_t>(), kTokens * k);
    EXPECT_LE((counts.max() - counts.min()).item<int64_t>(), kTokens * k % kExperts == 0 ? 0 : 1);
  }
}

// The load of one source of 5 tokens, for 6 experts on 3 ranks.
at::Tensor even_load(int64_t k, int64_t sample, const comm::Group& tp_cp) {
  config::Model model = router_model(6, k, kHidden);
  model.moe_router_force_even = true;
  moe::ExpertContext experts;
  experts.ep = 3;
  experts.tp_cp = tp_cp;
  moe::ForcedRouting forced(3, model, layer_context(), experts);
  return moe::tokens_per_expert(forced.deal(5, k, microbatch(5, 1, sample, 7)), 6);
}

// The loads of three successive sources.
void expect_even(const at::Tensor& loads, int64_t k) {
  EXPECT_TRUE(loads.view({3, 2}).sum(1).equal(at::full({3}, 5 * k, at::kLong))) << k << loads;
  EXPECT_LE((loads.max() - loads.min()).item<int64_t>(), 1) << k << loads;
}

TEST(Forced, RemaindersOfAnEvenLoadGoRound) {
  for (const int64_t k : {1, 2, 3}) {
    for (int64_t sample = 0; sample < 6; ++sample) {
      at::Tensor loads = at::zeros({6}, at::kLong);
      for (int64_t source = 0; source < 3; ++source) loads += even_load(k, sample + source, {});
      expect_even(loads, k);
    }
  }
}

TEST(Forced, RemaindersGoRoundThePartsOfAMicrobatch) {
  run_ranks(3, [](const comm::World& world) {
    for (const int64_t k : {1, 2, 3}) {
      const at::Tensor loads = even_load(k, 4, world.groups().tp);
      comm::all_reduce(loads, world.groups().tp);
      expect_even(loads, k);
    }
  });
}

TEST(Forced, TheOrderMovesOnByOneExpertAPeriod) {
  for (const int64_t step : std::vector<int64_t>{0, 2, 3, 5, 6, 3 * kExperts + 4}) {
    EXPECT_EQ(make_counts(forced_model(2, 1.5, 3), step).argmax().item<int64_t>(), step / 3 % kExperts) << step;
    EXPECT_EQ(make_counts(forced_model(2, 1.5, 0), step).argmax().item<int64_t>(), 0) << step;
  }
}

TEST(Forced, LayersStepsAndSamplesDrawForThemselves) {
  const config::Model model = forced_model(2, 0);
  const auto experts = [&](int64_t layer, int64_t step, int64_t first_sample) {
    TestRouter router(model, layer_context(), {}, layer);
    const nn::Microbatch batch = microbatch(kRows, kSamples, first_sample, step);
    nn::SegmentContext context{batch, false, {}};
    const at::NoGradGuard no_grad;
    return router.router.forward(sample({kRows, kSamples, kHidden}, 3), context)
        .experts.sum(-1)
        .view({kRows, kSamples});
  };
  const at::Tensor first = experts(3, 5, 0);
  EXPECT_TRUE(first.equal(experts(3, 5, 0)));
  EXPECT_FALSE(first.equal(experts(4, 5, 0)));
  EXPECT_FALSE(first.equal(experts(3, 6, 0)));
  // Sample 1 is at position 1 of one microbatch and at position 0 of the other.
  EXPECT_TRUE(first.select(1, 1).equal(experts(3, 5, 1).select(1, 0)));
  EXPECT_FALSE(first.select(1, 0).equal(first.select(1, 1)));
}

TEST(Forced, TheExpertBiasDoesNotTakePartAndEvaluationIsLeftAlone) {
  config::Model model = forced_model(2, 1.0);
  const at::Tensor wanted = make_counts(model, 5);
  model.moe_router_score_function = config::ScoreFunction::sigmoid;
  model.moe_router_enable_expert_bias = true;
  TestRouter router(model, layer_context());
  router.buffers.at(0)->data.copy_(sample({kExperts}, 4).mul(10));
  nn::Microbatch batch = microbatch(kRows, kSamples, 0, 5);
  const at::NoGradGuard no_grad;
  const at::Tensor x = sample({kRows, kSamples, kHidden}, 3);
  nn::SegmentContext training{batch, false, {}};
  EXPECT_TRUE(moe::tokens_per_expert(router.router.forward(x, training).experts, kExperts).equal(wanted));
  batch.training = false;
  batch.counters.samples = at::Tensor();
  nn::SegmentContext evaluation{batch, false, {}};
  const at::Tensor logits = at::matmul(x.view({-1, kHidden}), router.params[0]->data.t());
  EXPECT_TRUE(moe::dense_map(router.router.forward(x, evaluation).experts, kExperts)
                  .equal(plain_route(logits, moe::topk_rule(model), router.buffers[0]->data).map));
}

TEST(Forced, GradientsPassThroughToTheLogits) {
  const config::Model model = forced_model(2, 1.2);
  const moe::ForcedRouting forced(3, model, layer_context());
  const nn::Microbatch batch = microbatch(8, 2, 0, 5);
  const at::Tensor logits = sample({16, kExperts}, 1).requires_grad_(true), weights = sample({16, kExperts}, 2);
  const at::Tensor drawn = forced.draw(logits, 2, batch), y = drawn.detach().clone().requires_grad_(true);
  const moe::TopKRule rule = moe::topk_rule(model);
  const at::Tensor probs = moe::dense_probs(moe::route({}, drawn, rule), kExperts),
                   wanted = plain_route(y, rule).probs;
  EXPECT_LE(largest(torch::autograd::grad({(probs * weights).sum()}, {logits})[0] -
                    torch::autograd::grad({(wanted * weights).sum()}, {y})[0]),
            1e-14);
}

TEST(Forced, RecordedLoadsComeOutStepByStepAndBeginAnew) {
  config::Model model = router_model(4, 2, kHidden);
  model.moe_expert_capacity_factor = 1;  // 8 of the 16 tokens of 2 experts each
  moe::ExpertContext experts;
  experts.forced_loads = std::make_shared<moe::RecordedLoads>(
      moe::RecordedLoads{{3, {{16, 8, 8, 0}, {400, 100, 300, 0}}}, {4, {{8, 8, 8, 8}}}});
  const auto counts = [&](int64_t layer, int64_t step, const config::Model& of) {
    TestRouter router(of, layer_context(), experts, layer);
    return router.run(sample({8, 2, kHidden}, 3), microbatch(8, 2, 0, step), sample({16, 4}, 2)).map.sum(0);
  };
  config::Model dropless = model;
  dropless.moe_expert_capacity_factor = 0;
  for (const int64_t step : {0, 1, 2, 5}) {
    const at::Tensor wanted =
        step % 2 == 0 ? at::tensor({16, 8, 8, 0}, at::kLong) : at::tensor({16, 4, 12, 0}, at::kLong);
    EXPECT_TRUE(counts(3, step, dropless).equal(wanted)) << step;
    EXPECT_TRUE(counts(3, step, model).equal(wanted.clamp_max(8))) << step;
    EXPECT_TRUE(counts(4, step, model).equal(at::full({4}, 8, at::kLong))) << step;
  }
  // Evaluation is unchanged; probabilities are the router's own.
  TestRouter router(dropless, layer_context(), experts, 3);
  nn::Microbatch batch = microbatch(8, 2, 0, 0);
  const at::Tensor x = sample({8, 2, kHidden}, 3);
  const RouterRun got = router.run(x, batch, sample({16, 4}, 2));
  const at::Tensor logits = at::matmul(x.view({-1, kHidden}), router.params[0]->data.t());
  const at::Tensor kept = logits.exp() * got.map;
  EXPECT_LE(largest(got.probs - kept / kept.sum(-1, true)), 1e-14);
  batch.training = false;
  EXPECT_TRUE(router.run(x, batch, sample({16, 4}, 2)).map.equal(plain_route(logits, moe::topk_rule(dropless)).map));
}

}  // namespace
}  // namespace metroplex::test::forced_test
