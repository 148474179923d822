// The arithmetic of routing against plain formulas in float64.
#include "moe/routing.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "moe/router_tools.h"
#include "moe/dense_routing.h"

namespace metroplex::test::routing_test {
namespace {

using config::DropPolicy;
using config::ScoreFunction;

// Some tens of operations on numbers of size 1, each rounded to 2^-53.
constexpr double kRounding = 1e-14;

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

struct RouteCase {
  moe::TopKRule rule;
  bool bias = false;
};

std::vector<RouteCase> route_cases() {
  std::vector<RouteCase> cases;
  for (const ScoreFunction function : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::sqrtsoftplus}) {
    const bool softmax = function == ScoreFunction::softmax;
    for (const int64_t k : {1, 2, 4, 8}) {
      cases.push_back({{k, function, false, 0, 0, 0}});
      cases.push_back({{k, function, false, 0, 0, 2.5}, !softmax});
      if (softmax) cases.push_back({{k, function, true, 0, 0, 0}});
    }
    for (const bool pre : {false, true}) {
      cases.push_back({{2, function, pre, 4, 2, 0}});
      cases.push_back({{4, function, pre, 4, 2, 1.5}, !softmax});
      cases.push_back({{2, function, pre, 2, 1, 0}, !softmax});
      cases.push_back({{3, function, pre, 4, 2, 2.5, 2}, !softmax});  // DeepSeek-V3's
    }
    if (softmax) continue;
    for (const auto normalization : {config::TopkNormalization::always, config::TopkNormalization::never}) {
      for (const int64_t k : {1, 3}) cases.push_back({{k, function, false, 0, 0, 0, 0, normalization}});
    }
  }
  return cases;
}

TEST(Routing, EveryRuleIsThePlainFormulaWithItsGradient) {
  for (const RouteCase& test_case : route_cases()) {
    SCOPED_TRACE(base::concat("k ", test_case.rule.k, " function ", static_cast<int>(test_case.rule.score_function),
                              " pre ", test_case.rule.pre_softmax, " groups ", test_case.rule.num_groups, " bias ",
                              test_case.bias, " best ", test_case.rule.group_score_topk, " normalization ",
                              static_cast<int>(test_case.rule.normalization)));
    const at::Tensor values = sample({37, 8}, 5).mul(4), weights = sample({37, 8}, 6);
    const at::Tensor bias = test_case.bias ? sample({8}, 7) : at::Tensor();
    const at::Tensor x = leaf(values), y = leaf(values);
    const moe::Routing got = moe::route({}, x, test_case.rule, {bias, {}});
    const PlainRouting wanted = plain_route(y, test_case.rule, bias);
    ASSERT_TRUE(moe::dense_map(got.experts, 8).equal(wanted.map));
    const at::Tensor probs = moe::dense_probs(got, 8);
    EXPECT_LE(largest(probs - wanted.probs), 4 * kRounding);
    const at::Tensor dx = torch::autograd::grad({(probs * weights).sum()}, {x})[0],
                     dy = torch::autograd::grad({(wanted.probs * weights).sum()}, {y})[0];
    EXPECT_LE(largest(dx - dy), 8 * kRounding);
    // Sorted best first if only the row's own scores matter.
    const at::Tensor chosen =
        (test_case.bias ? plain_scores(values, test_case.rule.score_function) + bias : values).gather(1, got.experts);
    EXPECT_TRUE((chosen.diff().le(0)).all().item<bool>());
  }
}

TEST(Routing, AGivenChoiceGetsItsOwnProbabilities) {
  const at::Tensor logits = sample({9, 6}, 3).mul(3);
  const at::Tensor chosen = at::stack({at::arange(9).remainder(6), (at::arange(9) + 2).remainder(6)}, 1);
  for (const ScoreFunction function : {ScoreFunction::softmax, ScoreFunction::sigmoid}) {
    const moe::Routing routing = moe::route({}, logits, {2, function, false, 0, 0, 0}, {{}, chosen});
    EXPECT_TRUE(routing.experts.equal(chosen));
    const at::Tensor kept = moe::dense_map(chosen, 6).to(at::kDouble);
    const at::Tensor scores =
        (function == ScoreFunction::softmax ? logits.exp() : plain_scores(logits, function)) * kept;
    EXPECT_LE(largest(moe::dense_probs(routing, 6) - scores / scores.sum(-1, true)), kRounding);
  }
}

TEST(Routing, OfEqualScoresTheLowerExpertIsBetterAndWhatIsNoNumberWorst) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor logits =
      at::tensor({1.0, 2.0, 2.0, 1.0, none, 2.0, none, none, none, none, none, none}, at::kDouble);
  const at::Tensor experts = moe::route({}, logits.view({2, 6}), {.k = 4}).experts;
  EXPECT_TRUE(experts.equal(at::tensor({1, 2, 5, 0, 0, 1, 2, 3}, at::kLong).view({2, 4})));
  const at::Tensor biased = moe::route({}, at::zeros({1, 4}), {2, ScoreFunction::sigmoid, false, 0, 0, 0},
                                       {at::tensor({0.0, 0.5, 0.25, 0.5}, at::kFloat), {}})
                                .experts;
  EXPECT_TRUE(biased.equal(at::tensor({1, 3}, at::kLong).view({1, 2})));
}

// For groups and experts alike the first of equal ones wins; a NaN makes its group the last.
TEST(Routing, OfEqualGroupsTheFirstIsBetter) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor logits =
      at::tensor({1.0, 2.0, 2.0, 1.0, 1.5, 1.5, 3.0, none, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0}, at::kDouble);
  moe::TopKRule rule{.k = 3};
  rule.num_groups = 4, rule.group_topk = 2, rule.group_score_topk = 2;
  const at::Tensor experts = moe::route({}, logits.view({2, 8}), rule).experts;
  EXPECT_TRUE(experts.equal(at::tensor({1, 2, 0, 4, 5, 6}, at::kLong).view({2, 3}))) << experts;
}

// exp(1000) is infinite, log(1 + exp(1000)) is not.
TEST(Routing, SoftplusOfLargeLogitsIsFinite) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor logits = at::tensor({1000.0, 30.0, 2.0, -1000.0}, at::kDouble).to(type).view({1, 4});
    const moe::Routing routing =
        moe::route({}, logits, {.k = 3, .score_function = ScoreFunction::sqrtsoftplus, .pre_softmax = false});
    EXPECT_TRUE(routing.experts.equal(at::tensor({0, 1, 2}, at::kLong).view({1, 3}))) << routing.experts;
    const at::Tensor scores = at::softplus(logits.to(at::kDouble)).sqrt().narrow(1, 0, 3);
    const at::Tensor expected = scores / scores.sum();
    // A softplus, a root, a sum of three and a division, each rounded to fp32: below 8 x 2^-24 for probabilities
    // below 1.
    EXPECT_LT((routing.probs.to(at::kDouble) - expected).abs().max().item<double>(), 8 * 6e-8) << routing.probs;
  }
}

// The single-kernel choice equals that of libtorch's operators over the scores, to the bit, if no two scores are
// equal.
TEST(Routing, OfGroupsTheChoiceIsThatOfSeparateOperators) {
  for (const ScoreFunction function : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::sqrtsoftplus}) {
    for (const bool pre : {false, true}) {
      for (const auto& [k, groups, of, best] :
           {std::array<int64_t, 4>{8, 8, 4, 2}, {6, 8, 3, 0}, {8, 4, 2, 0}, {4, 16, 4, 4}, {1, 2, 1, 1}}) {
        moe::TopKRule rule{.k = k, .score_function = function, .pre_softmax = pre};
        rule.num_groups = groups, rule.group_topk = of, rule.group_score_topk = best;
        const bool softmax = function == ScoreFunction::softmax;
        for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
          const at::Tensor logits = sample({64, 64}, 11, type).mul(2),
                           bias = softmax ? at::Tensor() : sample({64}, 12, type).mul(0.3);
          at::Tensor scores = softmax                              ? (pre ? at::softmax(logits, -1) : logits)
                              : function == ScoreFunction::sigmoid ? at::sigmoid(logits)
                                                                   : at::softplus(logits).sqrt();
          if (bias.defined()) scores = scores + bias;
          EXPECT_TRUE(moe::route({}, logits, rule, {bias, {}}).experts.equal(moe::choose(scores, rule)))
              << static_cast<int>(function) << " " << pre << " " << k << " of " << groups << " " << type;
        }
      }
    }
  }
}

// Token by token, with a list per expert.
at::Tensor plain_kept(const moe::Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy) {
  at::Tensor kept = at::zeros({routing.experts.size(0), experts}, at::kBool);
  const at::Tensor map = moe::dense_map(routing.experts, experts), probs = moe::dense_probs(routing, experts);
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<int64_t> tokens;
    for (int64_t t = 0; t < map.size(0); ++t) {
      if (map[t][e].item<bool>()) tokens.push_back(t);
    }
    if (policy == DropPolicy::probs)
      std::stable_sort(tokens.begin(), tokens.end(),
                       [&](int64_t a, int64_t b) { return probs[a][e].item<double>() > probs[b][e].item<double>(); });
    for (size_t i = 0; i < tokens.size() && static_cast<int64_t>(i) < capacity; ++i) kept[tokens[i]][e] = true;
  }
  return kept;
}

TEST(Routing, AnExpertKeepsItsCapacityByProbabilityOrPositionAndTheFirstOfEquals) {
  at::Tensor values = sample({40, 5}, 8).mul(2);
  values.narrow(0, 10, 10).copy_(values.narrow(0, 0, 10));  // equal probabilities
  for (const DropPolicy policy : {DropPolicy::probs, DropPolicy::position}) {
    for (const int64_t capacity : {0, 1, 7, 16, 40}) {
      const at::Tensor x = leaf(values);
      const moe::Routing all = moe::route({}, x, {.k = 2});
      const moe::Routing kept = moe::drop(all, 5, capacity, policy);
      const at::Tensor wanted = plain_kept(all, 5, capacity, policy);
      ASSERT_TRUE(moe::dense_map(kept.experts, 5).equal(wanted)) << capacity;
      EXPECT_TRUE(moe::dense_probs(kept, 5).equal(moe::dense_probs(all, 5) * wanted));
      EXPECT_TRUE(kept.probs.masked_select(kept.experts.eq(-1)).eq(0).all().item<bool>());
      EXPECT_TRUE(moe::tokens_per_expert(kept.experts, 5).equal(wanted.sum(0)));
      // Dropped tokens have no gradient: the gradient of the later probabilities is masked.
      const at::Tensor weights = sample({40, 2}, 9);
      const at::Tensor dx = torch::autograd::grad({(kept.probs * weights).sum()}, {x}, {}, true)[0],
                       dmasked = torch::autograd::grad({(all.probs * (weights * kept.experts.ge(0))).sum()}, {x})[0];
      EXPECT_TRUE(dx.equal(dmasked));
    }
  }
}

TEST(Routing, DroppedTokensCountForNobody) {
  const at::Tensor experts = at::tensor({0, 2, -1, 2, 1, -1, 2, 0}, at::kLong).view({4, 2});
  EXPECT_TRUE(moe::tokens_per_expert(experts, 4).equal(at::tensor({2, 1, 3, 0}, at::kLong)));
  // Tokens 0 and 2 are of the first sample, 1 and 3 of the second.
  EXPECT_TRUE(moe::tokens_per_expert(experts, 3, 2).equal(at::tensor({1, 1, 1, 1, 0, 2}, at::kLong).view({2, 3})));
}

at::Tensor plain_sinkhorn(const at::Tensor& logits, double tolerance) {
  const at::Tensor cost = logits.exp();
  const auto rows = static_cast<double>(cost.size(0)), columns = static_cast<double>(cost.size(1));
  at::Tensor d1 = at::ones({cost.size(1)}, cost.options());
  while (true) {
    const at::Tensor d0 = 1 / rows / (at::mv(cost, d1) + 1e-8);
    const at::Tensor next = 1 / columns / (at::mv(cost.t(), d0) + 1e-8);
    const double change = (next - d1).abs().mean().item<double>();
    d1 = next;
    if (!(change > tolerance)) return d1 * cost * d0.unsqueeze(1);
  }
}

TEST(Routing, SinkhornGoesOnUntilTheToleranceAndEndsOnWhatIsNoNumber) {
  for (const auto& [spread, tolerance] :
       {std::pair(0.5, 1e-4), {4.0, 1e-4}, {12.0, 1e-4}, {0.5, 1e-6}, {4.0, 1e-6}}) {
    const at::Tensor logits = sample({50, 7}, 4).mul(spread);
    const at::Tensor got = moe::sinkhorn({}, logits, tolerance), wanted = plain_sinkhorn(logits, tolerance);
    EXPECT_LE(relative_difference(got, wanted), 1e-10);  // some hundred iterations of roundings that grow little
  }
  const at::Tensor bad = moe::sinkhorn({}, at::full({3, 2}, std::numeric_limits<double>::quiet_NaN(), at::kDouble));
  EXPECT_TRUE(bad.isnan().all().item<bool>());
}

TEST(Routing, SinkhornBalancesInTrainingOnly) {
  const at::Tensor values = sample({32, 4}, 2) + at::tensor({3.0, 0.0, 0.0, 0.0}, at::kDouble);  // all prefer expert
                                                                                                 // 0
  for (const int64_t k : {1, 2}) {
    const at::Tensor x = leaf(values);
    const moe::Routing training = moe::route_by_sinkhorn({}, x, k, true),
                       other = moe::route_by_sinkhorn({}, x, k, false);
    EXPECT_TRUE(moe::dense_map(training.experts, 4).equal(plain_map(plain_sinkhorn(values, 1e-4), {.k = k})));
    EXPECT_TRUE(moe::dense_map(other.experts, 4).equal(plain_map(values, {.k = k})));
    const at::Tensor y = leaf(values);
    const at::Tensor scores = plain_scores(y, k == 1 ? ScoreFunction::sigmoid : ScoreFunction::softmax);
    const at::Tensor wanted = scores.gather(1, training.experts);
    EXPECT_LE(largest(training.probs - wanted), kRounding);
    EXPECT_LE(largest(torch::autograd::grad({training.probs.sum()}, {x})[0] -
                      torch::autograd::grad({wanted.sum()}, {y})[0]),
              4 * kRounding);
  }
}

TEST(Routing, ShapesAreKnownWithoutValues) {
  const at::Tensor logits = at::empty({12, 8}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
  const device::Target target{.meta = true};
  for (const RouteCase& test_case : route_cases()) {
    const at::Tensor bias = test_case.bias ? at::empty({8}, logits.options()) : at::Tensor();
    const moe::Routing routing = moe::route(target, logits, test_case.rule, {bias, {}});
    EXPECT_EQ(routing.experts.sizes(), (std::vector<int64_t>{12, test_case.rule.k}));
    for (const DropPolicy policy : {DropPolicy::probs, DropPolicy::position}) {
      const moe::Routing kept = moe::drop(routing, 8, 2, policy);
      EXPECT_EQ(kept.experts.sizes(), routing.experts.sizes());
      EXPECT_EQ(kept.probs.sizes(), routing.probs.sizes());
      EXPECT_TRUE(kept.probs.is_meta());
    }
  }
  EXPECT_EQ(moe::route_by_sinkhorn(target, logits, 2, true).probs.sizes(), (std::vector<int64_t>{12, 2}));
}

}  // namespace
}  // namespace metroplex::test::routing_test
