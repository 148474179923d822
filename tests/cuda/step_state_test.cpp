// The kernels by which a step decides: each rule against its words, and a GPU against the CPU to the last bit.
#include "cuda/kernels/step_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda/device.h"
#include "support/gpu.h"

namespace metroplex::cuda::kernels::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

// One judgement of gradients with a norm of 3 unless told otherwise.
struct Case {
  StepRules rules;
  StepValues values;
  StepSums sums;
  double numbers[3] = {9, 0, 5};
  StepVerdict verdict;
  GroupRates rates[2];
  std::vector<double> table;

  Case() {
    rules.skip_threshold = kInf;
    rules.groups = 2;
    rules.rows = 4;
    values.steps = 6;
    table.push_back(5);
    for (int64_t i = 0; i < rules.rows * rate_row(2); ++i) table.push_back(0.25 * static_cast<double>(i));
  }
  const StepVerdict& judged() {
    judge_step(rules, {&values, rates, table.data(), &sums, numbers, &verdict});
    return verdict;
  }
};

TEST(StepState, AStepUpdatesCountsAndTakesItsRow) {
  Case c;
  const StepVerdict& verdict = c.judged();
  EXPECT_EQ(verdict.updates, 1);
  EXPECT_EQ(verdict.steps, 7);
  EXPECT_EQ(verdict.grad_norm, 3);
  EXPECT_EQ(verdict.num_zeros, 5);
  EXPECT_EQ(verdict.row, 1);
  EXPECT_EQ(c.values.number, 7);
  EXPECT_EQ(c.values.steps, 7);
  EXPECT_EQ(c.values.updates, 1);
  EXPECT_EQ(c.values.grad_factor, 1);
  const double* row = &c.table[1 + 11];
  EXPECT_EQ(verdict.lr, row[0]);
  for (int g = 0; g < 2; ++g) {
    const GroupRates& r = c.rates[g];
    const double got[] = {r.lr, r.weight_decay, r.keep, r.step_size, r.unbias};
    for (int i = 0; i < 5; ++i) EXPECT_EQ(got[i], row[1 + 5 * g + i]) << g << " " << i;
  }
}

TEST(StepState, ARowOutsideTheTableIsToldAndReadsNoOtherMemory) {
  for (const double steps : {4.0, 9.0}) {
    Case c;
    c.values.steps = steps;
    EXPECT_EQ(c.judged().row, steps - 5);
    EXPECT_EQ(c.verdict.lr, c.table[steps < 5 ? 1 : 1 + 3 * 11]);
  }
}

TEST(StepState, ClippingAndUnscalingAreOneFactor) {
  Case c;
  c.rules.max_norm = 2;
  c.judged();
  EXPECT_EQ(c.values.grad_factor, 2 / (3 + 1e-6));
  c.rules.max_norm = 4;
  c.judged();
  EXPECT_EQ(c.values.grad_factor, 1);
  c.values.loss_scale = 3;
  c.rules.per_token = true;
  c.sums.tokens = 10;
  c.rules.max_norm = 0.05;
  const double unscale = (1.0 / 10.0) * static_cast<double>(static_cast<float>(1.0 / 3.0)), norm = 3 * unscale;
  EXPECT_EQ(c.judged().unscale, unscale);
  EXPECT_EQ(c.verdict.grad_norm, norm);
  EXPECT_EQ(c.values.grad_factor, 0.05 / (norm + 1e-6) * unscale);
  EXPECT_EQ(unscale_of(true, 0, 1), 1) << "no token counts";
  EXPECT_EQ(unscale_of(false, 10, 2), 0.5);
}

// Whatever holds a step back leaves the count, and says why.
TEST(StepState, WhatHoldsAStepBack) {
  struct Held {
    const char* what;
    bool scales, holds_losses, holds_gradients;
    double bad_losses, squares, num_bad, threshold;
    bool updates, found_inf, over_limit;
  };
  const Held cases[] = {
      {"nothing", false, true, true, 0, 9, 0, 3, true, false, false},
      {"the limit", false, true, true, 0, 9, 0, 2.9, false, false, true},
      {"a loss", false, true, true, 1, 9, 0, kInf, false, false, false},
      {"a loss that nobody asks for", false, false, true, 1, 9, 0, kInf, true, false, false},
      {"gradients", false, true, true, 0, kNan, 1, kInf, false, true, false},
      {"an infinite norm of finite gradients", false, true, true, 0, kInf, 0, kInf, false, true, false},
      {"bad elements that do not count in the norm", false, true, true, 0, 9, 2, kInf, false, true, false},
      {"gradients that nobody asks for", false, false, false, 0, kNan, 1, 1, true, true, false},
      {"an overflow", true, false, false, 0, kInf, 1, 1, false, true, false},
      {"the limit with a scale", true, false, false, 0, 9, 0, 1, false, false, true},
  };
  for (const Held& held : cases) {
    SCOPED_TRACE(held.what);
    Case c;
    c.rules.scale.scales = held.scales;
    c.rules.holds_bad_losses = held.holds_losses;
    c.rules.holds_bad_gradients = held.holds_gradients;
    c.rules.skip_threshold = held.threshold;
    c.sums.bad_losses = held.bad_losses;
    c.numbers[0] = held.squares;
    c.numbers[1] = held.num_bad;
    const StepVerdict& verdict = c.judged();
    EXPECT_EQ(verdict.updates != 0, held.updates);
    EXPECT_EQ(verdict.found_inf != 0, held.found_inf);
    EXPECT_EQ(verdict.over_limit != 0, held.over_limit);
    EXPECT_EQ(c.values.updates, verdict.updates);
    EXPECT_EQ(c.values.steps, held.updates ? 7 : 6);
    EXPECT_EQ(c.values.number, 7);
  }
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

// Three microbatches, two loss terms of which the second is reported twice in a microbatch.
Sums summed(const std::function<void(OwnLosses&)>& change) {
  static const double losses[] = {3, 10, 7}, tokens[] = {2, 0.5, 4}, stop = 1, reports[] = {1, 2, 4, 8, 16};
  static const int64_t places[] = {0, 0, 1, 0, 1, 0, 1, 2, 0, 1};
  OwnLosses own{3, losses, tokens, &stop, 5, reports, places, false, true, true, true};
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
  const Sums elsewhere = summed([](OwnLosses& own) { own.losses = nullptr; });
  EXPECT_EQ(elsewhere.sums.loss + elsewhere.sums.tokens + elsewhere.losses[0], 0);
  EXPECT_EQ(elsewhere.terms[0], 1.0 / 2 + 16) << "every stage has terms";
}

at::Tensor tensor_of(const void* numbers, size_t bytes) {
  return at::from_blob(const_cast<void*>(numbers), {static_cast<int64_t>(bytes / sizeof(double))}, at::kDouble);
}
template <class T>
at::Tensor on_gpu(const T& numbers) {
  return tensor_of(&numbers, sizeof(T)).to(at::kCUDA);
}
template <class T>
T* at_gpu(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

void check_judgements() {
  uint64_t random = 1;
  const auto draw = [&] {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(random >> 40) / static_cast<double>(1 << 24);
  };
  for (int i = 0; i < 500; ++i) {
    Case c;
    c.rules.scale = {i % 2 == 0, i % 4 == 0, 1.5F, 2.1F, 0.3F, 3, 2};
    c.rules.per_token = i % 3 == 0;
    c.rules.max_norm = draw();
    c.rules.skip_threshold = 4 * draw();
    c.values.loss_scale = static_cast<float>(1 + 100 * draw());
    c.values.growth_tracker = i % 4;
    c.values.hysteresis_tracker = 2 - i % 3;
    c.sums.tokens = 100 * draw();
    c.numbers[0] = i % 10 == 9 ? kInf : draw();
    const at::Tensor values = on_gpu(c.values), rates = on_gpu(c.rates), sums = on_gpu(c.sums),
                     numbers = on_gpu(c.numbers), verdict = on_gpu(c.verdict),
                     table = at::tensor(c.table, at::kDouble).to(at::kCUDA);
    judge_step_cuda(c.rules,
                    {at_gpu<StepValues>(values), at_gpu<GroupRates>(rates), at_gpu<double>(table),
                     at_gpu<StepSums>(sums), at_gpu<double>(numbers), at_gpu<StepVerdict>(verdict)},
                    current_stream());
    c.judged();
    ASSERT_TRUE(at::equal(values.cpu(), tensor_of(&c.values, sizeof(c.values)))) << i;
    ASSERT_TRUE(at::equal(rates.cpu(), tensor_of(&c.rates, sizeof(c.rates)))) << i;
    ASSERT_TRUE(at::equal(verdict.cpu(), tensor_of(&c.verdict, sizeof(c.verdict)))) << i;
  }
}

void check_sums_and_factors() {
  const int64_t n = 1000;
  const at::Tensor losses = at::arange(n, at::kDouble).sin(), tokens = at::arange(n, at::kDouble).cos().abs() * 9;
  const at::Tensor stop = at::ones({1}, at::kDouble), places = at::zeros({n, 2}, at::kLong);
  places.select(1, 0).copy_(at::arange(n, at::kLong).remainder(2));
  places.select(1, 1).copy_(at::arange(n, at::kLong));
  const StepValues values{.loss_scale = 3};
  const LossFactorShape shape{n, 3, false};
  const auto run = [&](at::Device device, auto&& sums, auto&& factors) {
    const auto there = [&](const at::Tensor& x) { return x.to(device); };
    const at::Tensor l = there(losses), t = there(tokens), s = there(stop), p = there(places),
                     v = there(tensor_of(&values, sizeof(values)));
    const at::Tensor out = at::zeros({5 + 2 + n}, v.options()), f = at::zeros({n}, v.options());
    auto* const place = at_gpu<StepSums>(out);
    auto* const terms = at_gpu<double>(out) + 5;
    sums(OwnLosses{n, at_gpu<double>(l), at_gpu<double>(t), at_gpu<double>(s), n, at_gpu<double>(l),
                   at_gpu<int64_t>(p), false, true, true, true},
         SumsPlace{place, terms, 2, terms + 2});
    factors(at_gpu<StepValues>(v), at_gpu<double>(t), at_gpu<double>(f));
    return at::cat({out, f}).cpu();
  };
  const at::Tensor right = run(
      at::kCPU, [](const OwnLosses& own, const SumsPlace& place) { own_sums(own, place); },
      [&](const StepValues* v, const double* t, double* f) { loss_factors(v, t, f, shape); });
  const at::Tensor got = run(
      at::kCUDA, [](const OwnLosses& own, const SumsPlace& place) { own_sums_cuda(own, place, current_stream()); },
      [&](const StepValues* v, const double* t, double* f) { loss_factors_cuda(v, t, f, shape, current_stream()); });
  EXPECT_TRUE(at::equal(got, right));
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

TEST(StepStateCuda, TheGpuHasTheBitsOfTheCpuTwinAndWithoutOneTheCallsSaySo) {
  if (const char* why = expected_refusal()) {
    const std::string said[] = {refusal([] { judge_step_cuda({}, {}, nullptr); }),
                                refusal([] { own_sums_cuda({}, {}, nullptr); }),
                                refusal([] { loss_factors_cuda(nullptr, nullptr, nullptr, {}, nullptr); })};
    const std::string names[] = {"judge_step", "own_sums", "loss_factors"};
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NE(said[i].find("[cuda] kernel " + names[i] + why), std::string::npos) << said[i];
  }
  MPX_NEED_GPU_KERNELS();
  check_judgements();
  check_sums_and_factors();
}

}  // namespace
}  // namespace metroplex::cuda::kernels::test
