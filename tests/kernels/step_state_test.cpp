// The kernels of the step decision: each rule against its specification.
#include "kernels/step_state_case.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace metroplex::kernels::test::step_state_test {
namespace {

TEST(StepState, AStepUpdatesCountsAndTakesItsRow) {
  Case test_case;
  const StepVerdict& verdict = test_case.judged();
  EXPECT_EQ(verdict.updates, 1);
  EXPECT_EQ(verdict.steps, 7);
  EXPECT_EQ(verdict.grad_norm, 3);
  EXPECT_EQ(verdict.num_zeros, 5);
  EXPECT_EQ(verdict.row, 1);
  EXPECT_EQ(test_case.values.number, 7);
  EXPECT_EQ(test_case.values.steps, 7);
  EXPECT_EQ(test_case.values.updates, 1);
  EXPECT_EQ(test_case.values.grad_factor, 1);
  const double* row = &test_case.table[1 + 11];
  EXPECT_EQ(verdict.lr, row[0]);
  for (int g = 0; g < 2; ++g) {
    const GroupRates& rates = test_case.rates[g];
    const double got[] = {rates.lr, rates.weight_decay, rates.keep, rates.step_size, rates.unbias};
    for (int i = 0; i < 5; ++i) EXPECT_EQ(got[i], row[1 + 5 * g + i]) << g << " " << i;
  }
}

TEST(StepState, ARowOutsideTheTableIsToldAndReadsNoOtherMemory) {
  for (const double steps : {4.0, 9.0}) {
    Case test_case;
    test_case.values.steps = steps;
    EXPECT_EQ(test_case.judged().row, steps - 5);
    EXPECT_EQ(test_case.verdict.lr, test_case.table[steps < 5 ? 1 : 1 + 3 * 11]);
  }
}

TEST(StepState, ClippingAndUnscalingAreOneFactor) {
  Case test_case;
  test_case.rules.max_norm = 2;
  test_case.judged();
  EXPECT_EQ(test_case.values.grad_factor, 2 / (3 + 1e-6));
  test_case.rules.max_norm = 4;
  test_case.judged();
  EXPECT_EQ(test_case.values.grad_factor, 1);
  test_case.values.loss_scale = 3;
  test_case.rules.per_token = true;
  test_case.sums.tokens = 10;
  test_case.rules.max_norm = 0.05;
  const double unscale = (1.0 / 10.0) * static_cast<double>(static_cast<float>(1.0 / 3.0)), norm = 3 * unscale;
  EXPECT_EQ(test_case.judged().unscale, unscale);
  EXPECT_EQ(test_case.verdict.grad_norm, norm);
  EXPECT_EQ(test_case.values.grad_factor, 0.05 / (norm + 1e-6) * unscale);
  EXPECT_EQ(unscale_of(true, 0, 1, 1), 1) << "no token counts";
  EXPECT_EQ(unscale_of(true, 10, 4, 1), 0.1);
  EXPECT_EQ(unscale_of(false, 10, 4, 2), 0.125) << "the mean over 4 ranks";
}

// A suspended step does not advance the count and reports the reason.
TEST(StepState, WhatHoldsAStepBack) {
  struct HeldMemory {
    const char* what;
    bool scales, holds_losses, holds_gradients;
    double bad_losses, squares, num_bad, threshold;
    bool updates, found_inf, over_limit;
  };
  const HeldMemory cases[] = {
      {"nothing", false, true, true, 0, 9, 0, 3, true, false, false},
      {"the limit", false, true, true, 0, 9, 0, 2.9, false, false, true},
      {"a loss", false, true, true, 1, 9, 0, kInf, false, false, false},
      {"a loss that no caller requests", false, false, true, 1, 9, 0, kInf, true, false, false},
      {"gradients", false, true, true, 0, kNan, 1, kInf, false, true, false},
      {"an infinite norm of finite gradients", false, true, true, 0, kInf, 0, kInf, false, true, false},
      {"bad elements that do not count in the norm", false, true, true, 0, 9, 2, kInf, false, true, false},
      {"gradients that no caller requests", false, false, false, 0, kNan, 1, 1, true, true, false},
      {"an overflow", true, false, false, 0, kInf, 1, 1, false, true, false},
      {"the limit with a scale", true, false, false, 0, 9, 0, 1, false, false, true},
  };
  for (const HeldMemory& held : cases) {
    SCOPED_TRACE(held.what);
    Case test_case;
    test_case.rules.scale.scales = held.scales;
    test_case.rules.holds_bad_losses = held.holds_losses;
    test_case.rules.holds_bad_gradients = held.holds_gradients;
    test_case.rules.skip_threshold = held.threshold;
    test_case.sums.bad_losses = held.bad_losses;
    test_case.numbers[0] = held.squares;
    test_case.numbers[1] = held.num_bad;
    const StepVerdict& verdict = test_case.judged();
    EXPECT_EQ(verdict.updates != 0, held.updates);
    EXPECT_EQ(verdict.found_inf != 0, held.found_inf);
    EXPECT_EQ(verdict.over_limit != 0, held.over_limit);
    EXPECT_EQ(test_case.values.updates, verdict.updates);
    EXPECT_EQ(test_case.values.steps, held.updates ? 7 : 6);
    EXPECT_EQ(test_case.values.number, 7);
  }
}

// A step with overflowing rows is repeated: gradients, losses and the loss scale are ignored.
TEST(StepState, FlagsOfLayersHoldAStepBack) {
  Case test_case;
  test_case.rules.scale.scales = test_case.rules.scale.dynamic = true;
  test_case.rules.scale.growth_interval = 1;
  test_case.rules.skip_threshold = 1;
  test_case.values.loss_scale = 4;
  test_case.values.hysteresis_tracker = 1;
  test_case.sums.overflows = 2;
  test_case.numbers[1] = 1;
  const StepVerdict overflow = test_case.judged();
  EXPECT_EQ(overflow.updates + overflow.found_inf + overflow.over_limit, 0);
  EXPECT_EQ(test_case.values.steps, 6);
  EXPECT_EQ(test_case.values.loss_scale, 4);
  EXPECT_EQ(test_case.values.growth_tracker, 0);
  EXPECT_EQ(test_case.values.hysteresis_tracker, 1);
  test_case.sums.overflows = 0;
  test_case.rules.skip_threshold = kInf;
  EXPECT_EQ(test_case.judged().found_inf, 1);
  EXPECT_EQ(test_case.values.loss_scale, 2);
  test_case.numbers[1] = 0;
  EXPECT_EQ(test_case.judged().updates, 1);
  EXPECT_EQ(test_case.values.loss_scale, 4);
}

TEST(StepState, FactorsOfLossesAreMeansOfMicrobatchesOrOnePerToken) {
  const StepValues values{.loss_scale = 8};
  const double tokens[] = {5, 0, 0.5, 7};
  double factors[4];
  loss_factors(&values, tokens, factors, {4, 2, false});
  EXPECT_EQ(factors[0], 8 * (2.0 / (5 * 4.0)));
  EXPECT_EQ(factors[1], 8 * (2.0 / 4.0));
  EXPECT_EQ(factors[2], 8 * (2.0 / 4.0));
  EXPECT_EQ(factors[3], 8 * (2.0 / (7 * 4.0)));
  loss_factors(&values, tokens, factors, {4, 2, true});
  for (const double factor : factors) EXPECT_EQ(factor, 8);
}

struct Sums {
  StepSums sums;
  double terms[2] = {-1, -1}, losses[3] = {-1, -1, -1};
};

// Three microbatches, two loss terms; the second term is reported twice in each.
Sums summed(const std::function<void(OwnLosses&)>& change) {
  static const double losses[] = {3, 10, 7}, tokens[] = {2, 0.5, 4}, stop = 1;
  static const double reports[] = {1, 2, 4, 16, 0, 0, 0, 8, 0};
  static const int64_t terms[] = {0, 1, 1};
  static const int32_t flags[kStepFlags] = {};
  OwnLosses own{3, losses, tokens, &stop, 3, reports, terms, false, true, true, true, flags};
  change(own);
  Sums out;
  own_sums(own, {&out.sums, out.terms, 2, out.losses});
  return out;
}

TEST(StepState, OwnSumsAreMeansOfMicrobatchesOrSumsOverTokens) {
  const Sums means = summed([](OwnLosses&) {});
  EXPECT_EQ(means.sums.loss, 3.0 / 2 + 10.0 + 7.0 / 4);
  EXPECT_EQ(means.sums.weight, 3);
  EXPECT_EQ(means.sums.tokens, 6.5);
  EXPECT_EQ(means.sums.stop, 1);
  EXPECT_EQ(means.sums.bad_losses, 0);
  EXPECT_EQ(means.terms[0], 1.0 / 2 + 16);
  EXPECT_EQ(means.terms[1], 2.0 / 2 + 4.0 / 2 + 8.0 / 4);
  EXPECT_EQ(means.losses[1], 10);
  const Sums tokens = summed([](OwnLosses& own) { own.per_token = true; });
  EXPECT_EQ(tokens.sums.loss, 20);
  EXPECT_EQ(tokens.sums.weight, 6.5);
  EXPECT_EQ(tokens.terms[1], 14);
}

TEST(StepState, FlagsAreOfRanksHoweverOftenRaised) {
  for (const int32_t raised : {3, -1}) {
    const int32_t flags[kStepFlags] = {raised};
    EXPECT_EQ(summed([&](OwnLosses& own) { own.flags = flags; }).sums.overflows, 1);
  }
  EXPECT_EQ(summed([](OwnLosses&) {}).sums.overflows, 0);
}

TEST(StepState, ATermThatThereIsNotWritesNowhereAndShows) {
  for (const int64_t wrong : {int64_t{2}, int64_t{-1}, int64_t{1} << 40}) {
    const int64_t terms[] = {0, wrong, 1};
    const Sums sums = summed([&](OwnLosses& own) { own.terms = terms; });
    EXPECT_TRUE(std::isnan(sums.terms[0])) << wrong;
    EXPECT_TRUE(std::isnan(sums.terms[1])) << wrong;
    EXPECT_EQ(sums.losses[0], 3);
  }
}

TEST(StepState, WhoHoldsTheSameAsAnotherRankAddsNothingButItsStopAndItsBadLosses) {
  const double bad[] = {3, kNan, -kInf};
  const Sums copy = summed([&](OwnLosses& own) {
    own.losses = bad;
    own.counts_losses = own.counts_tokens = own.counts_terms = false;
  });
  EXPECT_EQ(copy.sums.loss, 0);
  EXPECT_EQ(copy.sums.weight + copy.sums.tokens + copy.terms[0] + copy.terms[1], 0);
  EXPECT_EQ(copy.sums.bad_losses, 2);
  EXPECT_EQ(copy.sums.stop, 1);
  EXPECT_TRUE(std::isnan(copy.losses[1]));
  const Sums part = summed([](OwnLosses& own) { own.counts_tokens = false; });
  EXPECT_EQ(part.sums.loss, 3.0 / 2 + 10.0 + 7.0 / 4);
  EXPECT_EQ(part.sums.weight + part.sums.tokens, 0);
  const double counts[] = {1, 0, 1};
  const Sums other = summed([&](OwnLosses& own) { own.counts = counts; });
  EXPECT_EQ(other.sums.tokens, 6) << "another rank counts the second microbatch's";
  EXPECT_EQ(other.sums.weight, 2);
  EXPECT_EQ(other.sums.loss, part.sums.loss);
  const Sums elsewhere = summed([](OwnLosses& own) { own.losses = nullptr; });
  EXPECT_EQ(elsewhere.sums.loss + elsewhere.sums.tokens + elsewhere.losses[0], 0);
  EXPECT_EQ(elsewhere.terms[0], 1.0 / 2 + 16) << "every stage has terms";
}

TEST(StepState, WhatIsCopiedFollowsTheMask) {
  for (const bool updates : {false, true}) {
    for (const bool when : {false, true}) {
      const StepValues values{.updates = updates ? 1.0 : 0.0};
      const at::Tensor from = at::arange(1, 8, at::kChar), to = at::zeros({7}, at::kChar);
      copy_if_updates(&values, when, from.const_data_ptr(), to.mutable_data_ptr(), 6);
      const at::Tensor copied = at::cat({from.narrow(0, 0, 6), at::zeros({1}, at::kChar)});
      EXPECT_TRUE(at::equal(to, updates == when ? copied : at::zeros_like(to)));
    }
  }
}

}  // namespace
}  // namespace metroplex::kernels::test::step_state_test
