// The loss scale over histories of overflows.
#include "optim/grad_scaler.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/scale_history.h"

namespace metroplex::optim::grad_scaler_test {
namespace {

// The state after steps with (x) and without overflow, from `start`.
GradScalerState run_steps(const GradScaler& scaler, const GradScalerState& start, const std::string& history) {
  test::ScaleHistory steps{scaler.rule(), {}, {}};
  set_scaler_state(steps.values, start);
  for (const char step : history) {
    const double scale = steps.values.loss_scale;
    steps.step(step == 'x');
    EXPECT_EQ(steps.verdict.updates, step == 'x' ? 0 : 1);
    EXPECT_EQ(steps.verdict.loss_scale, scale) << "what the step used, not what comes next";
    EXPECT_EQ(steps.verdict.grad_norm, 2.0 * kernels::inverse_of(scale));
  }
  return scaler_state(steps.values);
}
GradScalerState run_history(const GradScalerArgs& args, const std::string& history) {
  const GradScaler scaler(args);
  return run_steps(scaler, scaler.start(), history);
}

TEST(GradScaler, GrowsAfterARunOfStepsWithoutOverflow) {
  const GradScalerArgs args{.initial_scale = 8, .growth_interval = 3};
  EXPECT_EQ(run_history(args, "..").scale, 8.0f);
  EXPECT_EQ(run_history(args, "...").scale, 16.0f);
  EXPECT_EQ(run_history(args, "..x..").scale, 8.0f);  // the count of good steps restarts after an overflow
  EXPECT_EQ(run_history(args, "..x...").scale, 16.0f);
}

TEST(GradScaler, IsCutOnceItsPatienceIsUsedUp) {
  const GradScalerArgs args{.initial_scale = 8, .growth_interval = 3, .hysteresis = 2};
  EXPECT_EQ(run_history(args, "x").scale, 8.0f);
  EXPECT_EQ(run_history(args, "xx").scale, 4.0f);
  EXPECT_EQ(run_history(args, "x.x").scale, 4.0f);  // good steps do not restore the hysteresis
}

TEST(GradScaler, PatienceComesBackByGrowthAndNeverByACut) {
  const GradScalerArgs args{.initial_scale = 64, .growth_interval = 2, .hysteresis = 2};
  EXPECT_EQ(run_history(args, "xxx").scale, 16.0f);    // the second and third overflow reduce the scale
  EXPECT_EQ(run_history(args, "xx.x.x").scale, 8.0f);  // still exhausted after too few good steps
  EXPECT_EQ(run_history(args, "xx..").hysteresis_tracker, 2);
  EXPECT_EQ(run_history(args, "xx..x").scale, 64.0f);  // reduced to 32, grown to 64, one overflow tolerated
  EXPECT_EQ(run_history(args, "xx..xx").scale, 32.0f);
  EXPECT_EQ(run_history(args, "xxxx").hysteresis_tracker, -2);
}

TEST(GradScaler, IsCutToItsMinimumAtMost) {
  const GradScalerArgs small{.initial_scale = 4, .min_scale = 2, .hysteresis = 1};
  EXPECT_EQ(run_history(small, "xxxxxxxx").scale, 2.0f);
}

// Megatron-LM's scale becomes inf here and skips every later step (docs/numerics.md describes the difference).
TEST(GradScaler, StaysWhereItsDoubleWouldBePastFp32WhereMegatronsBecomesInf) {
  const GradScalerArgs large{.initial_scale = std::ldexp(1.0, 126), .growth_interval = 1};
  EXPECT_EQ(run_history(large, ".....").scale, std::ldexp(1.0f, 127));
}

TEST(GradScaler, ItsReciprocalIsRoundedOnce) {
  for (const double scale : {3.0, 10.0, 30.000001907348633, 4294967296.0}) {
    EXPECT_EQ(kernels::inverse_of(scale), static_cast<double>(static_cast<float>(1.0 / scale)));
  }
}

TEST(GradScaler, AConstantOneNeverMoves) {
  const GradScalerArgs args{.initial_scale = 1000, .growth_interval = 1, .hysteresis = 1, .constant = true};
  EXPECT_EQ(run_history(args, "xx...x..").scale, 1000.0f);
  EXPECT_EQ(GradScaler(args).resumed({5, 1, 1}).scale, 1000.0f);
}

TEST(GradScaler, GoesOnFromItsStateAsIfNothingHadHappened) {
  const GradScalerArgs args{
      .initial_scale = 100, .growth_factor = 3, .backoff_factor = 0.3, .growth_interval = 2, .hysteresis = 3};
  const std::string history = "xx.x.xx..x...xx.x..x";
  for (size_t cut = 0; cut <= history.size(); ++cut) {
    const GradScaler scaler(args);
    const GradScalerState saved = run_history(args, history.substr(0, cut));
    EXPECT_EQ(run_steps(scaler, scaler.resumed(saved), history.substr(cut)), run_history(args, history)) << cut;
  }
}

TEST(GradScaler, RefusesNumbersThatScaleNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<GradScalerArgs> wrong = {{.initial_scale = 0},
                                             {.initial_scale = inf},
                                             {.initial_scale = 1e39},
                                             {.min_scale = 0},
                                             {.initial_scale = 1, .min_scale = 2},
                                             {.growth_factor = 1},
                                             {.growth_factor = nan},
                                             {.backoff_factor = 1},
                                             {.backoff_factor = 0},
                                             {.growth_interval = 0},
                                             {.hysteresis = 0},
                                             {.initial_scale = -8, .constant = true}};
  for (const GradScalerArgs& args : wrong) EXPECT_THROW(GradScaler{args}, base::Error);
  const GradScaler scaler({});
  EXPECT_THROW(scaler.resumed({0, 0, 2}), base::Error);
  EXPECT_THROW(scaler.resumed({nan, 0, 2}), base::Error);
  EXPECT_THROW(scaler.resumed({8, -1, 2}), base::Error);
  EXPECT_EQ(scaler.start(), (GradScalerState{4294967296.0, 0, 2}));
}

TEST(GradScaler, IsMadeOnlyForRunsThatScale) {
  config::Precision precision;
  for (const char* format : {"fp32", "bf16", "fp64"}) {
    precision.params_dtype = format;
    EXPECT_FALSE(make_grad_scaler(precision).has_value()) << format;
  }
  precision.params_dtype = "fp16";
  precision.hysteresis = 5;
  const auto dynamic = make_grad_scaler(precision);
  ASSERT_TRUE(dynamic && !dynamic->constant());
  EXPECT_EQ(dynamic->start(), (GradScalerState{4294967296.0, 0, 5}));
  precision.loss_scale_window = 7;
  const kernels::ScaleRule rule = make_grad_scaler(precision)->rule();
  EXPECT_EQ(rule.growth_interval, 7);
  EXPECT_EQ(rule.hysteresis, 5);
  precision.loss_scale = 1024;
  EXPECT_TRUE(make_grad_scaler(precision)->constant());
  precision.params_dtype = "bf16";
  EXPECT_EQ(make_grad_scaler(precision)->start().scale, 1024.0f);
}

}  // namespace
}  // namespace metroplex::optim::grad_scaler_test
