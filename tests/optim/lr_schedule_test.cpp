// From a config to a schedule, the rules of a schedule, and the values of a resumed run. metroplex_vectors compares
// the styles with recorded values.
#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "support/error_of.h"

namespace metroplex::test::lr_schedule_test {
namespace {

config::Config in_iterations() {
  config::Config config;
  config.train.global_batch_size = 16;
  config.train.train_iters = 100;
  config.optim.lr = 1e-2;
  config.optim.min_lr = 1e-3;
  config.optim.lr_warmup_iters = 10;
  return config;
}

TEST(ScheduleArgs, IterationsBecomeSamplesByTheGlobalBatch) {
  config::Config config = in_iterations();
  config.optim.lr_decay_iters = 80;
  config.optim.lr_wsd_decay_iters = 5;
  const optim::ScheduleArgs args = optim::schedule_args(config);
  EXPECT_EQ(args.lr_warmup_steps, 160);
  EXPECT_EQ(args.lr_decay_steps, 1280);
  EXPECT_EQ(args.wsd_decay_steps, 80);
  EXPECT_EQ(args.wd_incr_steps, 1600);
  EXPECT_EQ(args.max_lr, 1e-2);
  EXPECT_EQ(args.min_lr, 1e-3);
}

TEST(ScheduleArgs, WithoutADecayLengthTheWholeRunDecays) {
  EXPECT_EQ(optim::schedule_args(in_iterations()).lr_decay_steps, 1600);
}

TEST(ScheduleArgs, SamplesAreTakenAsTheyAre) {
  config::Config config = in_iterations();
  config.train.train_iters = 0;
  config.train.train_samples = 1001;
  config.optim.lr_warmup_iters = 0;
  config.optim.lr_warmup_samples = 33;
  config.optim.lr_decay_samples = 999;
  config.optim.lr_wsd_decay_samples = 111;
  const optim::ScheduleArgs args = optim::schedule_args(config);
  EXPECT_EQ(args.lr_warmup_steps, 33);
  EXPECT_EQ(args.lr_decay_steps, 999);
  EXPECT_EQ(args.wsd_decay_steps, 111);
  EXPECT_EQ(args.wd_incr_steps, 1001);
  config.optim.lr_decay_samples = 0;
  EXPECT_EQ(optim::schedule_args(config).lr_decay_steps, 1001);
}

TEST(ScheduleArgs, AWarmUpFractionIsOfTheDecayLength) {
  config::Config config = in_iterations();
  config.optim.lr_warmup_iters = 0;
  config.optim.lr_warmup_fraction = 0.25;
  config.optim.lr_decay_iters = 40;
  EXPECT_EQ(optim::schedule_args(config).lr_warmup_steps, 160);
}

// Megatron's lr_warmup_fraction * lr_decay_steps stays a float.
TEST(ScheduleArgs, WarmUpFractionIsNotRounded) {
  config::Config config;
  config.train.global_batch_size = 1;
  config.train.train_iters = 25;
  config.optim.lr = 0.3;
  config.optim.lr_warmup_fraction = 0.1;
  EXPECT_DOUBLE_EQ(optim::schedule_args(config).lr_warmup_steps, 2.5);
  EXPECT_DOUBLE_EQ(optim::LrSchedule(optim::schedule_args(config)).lr(1), 0.3 * 1 / 2.5);
}

TEST(ScheduleArgs, WeightDecayHasOneValueUnlessAskedToGrow) {
  config::Config config = in_iterations();
  config.optim.weight_decay = 0.05;
  optim::ScheduleArgs args = optim::schedule_args(config);
  EXPECT_EQ(args.start_wd, 0.05);
  EXPECT_EQ(args.end_wd, 0.05);
  config.optim.start_weight_decay = 0.0;
  config.optim.end_weight_decay = 0.2;
  config.optim.weight_decay_incr_style = "linear";
  args = optim::schedule_args(config);
  const optim::LrSchedule schedule(args);
  EXPECT_EQ(schedule.weight_decay(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule.weight_decay(800), 0.1);
  EXPECT_EQ(schedule.weight_decay(5000), 0.2);
}

TEST(LrSchedule, AWarmUpThenAStableRateThenADecay) {
  config::Config config = in_iterations();
  config.optim.lr_decay_style = "WSD";
  config.optim.lr_wsd_decay_style = "linear";
  config.optim.lr_wsd_decay_iters = 40;
  const optim::LrSchedule schedule(optim::schedule_args(config));
  for (const int64_t stable : {161, 500, 960}) EXPECT_EQ(schedule.lr(stable), 1e-2) << stable;
  // A rate is the minimum plus a fraction of the difference: a few roundings, which DOUBLE_EQ tolerates.
  EXPECT_DOUBLE_EQ(schedule.lr(961), 1e-3 + 9e-3 * 639 / 640);
  EXPECT_DOUBLE_EQ(schedule.lr(1280), 1e-3 + 9e-3 / 2);
  EXPECT_EQ(schedule.lr(1600), 1e-3);
}

TEST(LrSchedule, WarmsUpFromItsFirstRateAndEndsAtTheLowest) {
  config::Config config = in_iterations();
  config.optim.lr_warmup_init = 2e-3;
  const optim::LrSchedule schedule(optim::schedule_args(config));
  EXPECT_DOUBLE_EQ(schedule.lr(0), 2e-3);
  EXPECT_DOUBLE_EQ(schedule.lr(80), 6e-3);
  EXPECT_DOUBLE_EQ(schedule.lr(160), 1e-2);
  EXPECT_DOUBLE_EQ(schedule.lr(880), 5.5e-3);
  EXPECT_DOUBLE_EQ(schedule.lr(1600), 1e-3);
  EXPECT_EQ(schedule.lr(1'000'000), 1e-3);
}

// max_lr sqrt(warm-up) / sqrt(step) is 1e-2 / 2 at four times the warm-up, and 1e-2 / 4 at sixteen times.
TEST(LrSchedule, InverseSquareRootStopsAtTheMinimum) {
  optim::ScheduleArgs args = optim::schedule_args(in_iterations());
  args.lr_decay_style = "inverse-square-root";
  args.lr_warmup_steps = 10, args.lr_decay_steps = 1000, args.min_lr = 4e-3;
  const optim::LrSchedule schedule(args);
  EXPECT_DOUBLE_EQ(schedule.lr(40), 5e-3);
  EXPECT_EQ(schedule.lr(160), 4e-3);
}

TEST(LrSchedule, AGroupMayHaveItsOwnRatesAndFactors) {
  const optim::LrSchedule schedule(optim::schedule_args(in_iterations()));
  optim::GroupFactors group;
  group.lr_mult = 0.5;
  group.wd_mult = 0.0;
  EXPECT_DOUBLE_EQ(schedule.lr(700, group), 0.5 * schedule.lr(700));
  EXPECT_EQ(schedule.weight_decay(700, group), 0.0);
  group.max_lr = 4e-2;
  EXPECT_DOUBLE_EQ(schedule.lr(160, group), 2e-2);
}

TEST(LrSchedule, AGroupMayHaveItsOwnWeightDecay) {
  optim::ScheduleArgs args = optim::schedule_args(in_iterations());
  args.start_wd = 0.01, args.end_wd = 0.1, args.wd_incr_steps = 100, args.wd_incr_style = "linear";
  const optim::LrSchedule grows(args);
  optim::GroupFactors group;
  group.start_wd = 0.2, group.end_wd = 0.6;
  EXPECT_DOUBLE_EQ(grows.weight_decay(0, group), 0.2);
  EXPECT_DOUBLE_EQ(grows.weight_decay(50, group), 0.4);
  EXPECT_DOUBLE_EQ(grows.weight_decay(101, group), 0.6);
  EXPECT_DOUBLE_EQ(grows.weight_decay(50), 0.055);
  group.wd_mult = 0.5;
  EXPECT_DOUBLE_EQ(grows.weight_decay(50, group), 0.2);
  args.start_wd = args.end_wd, args.wd_incr_style = "constant";
  const optim::LrSchedule constant(args);
  EXPECT_THROW(constant.weight_decay(50, group), base::Error);
  group.start_wd = 0.6;
  EXPECT_DOUBLE_EQ(constant.weight_decay(50, group), 0.3);
}

TEST(LrSchedule, EachWrongArgumentIsRefusedByItsName) {
  struct Wrong {
    std::function<void(optim::ScheduleArgs&)> spoil;
    const char* named;
  };
  const Wrong wrong[] = {
      {[](auto& a) { a.min_lr = -1; }, "min_lr"},
      {[](auto& a) { a.min_lr = 1; }, "min_lr"},
      {[](auto& a) { a.init_lr = 1; }, "lr_warmup_init"},
      {[](auto& a) { a.lr_decay_steps = 0; }, "decays"},
      {[](auto& a) { a.lr_warmup_steps = a.lr_decay_steps; }, "warm"},
      {[](auto& a) { a.lr_decay_style = "cosin"; }, "cosine"},
      {[](auto& a) { a.lr_decay_style = "WSD"; }, "lr_wsd_decay"},
      {[](auto& a) { a.lr_decay_style = "WSD", a.wsd_decay_steps = 5, a.lr_wsd_decay_style = "x"; }, "'x'"},
      {[](auto& a) { a.lr_decay_style = "WSD", a.wsd_decay_steps = 5, a.lr_wsd_decay_style.reset(); }, "is missing"},
      {[](auto& a) { a.start_wd = 0.5, a.end_wd = 0.1, a.wd_incr_style = "linear"; }, "0.5 to 0.1"},
      {[](auto& a) { a.start_wd = 0, a.end_wd = 0.1; }, "constant weight decay"},
      {[](auto& a) { a.wd_incr_style = "steep"; }, "steep"},
  };
  for (const Wrong& w : wrong) {
    optim::ScheduleArgs args = optim::schedule_args(in_iterations());
    const std::string message = catch_error([&] {
      w.spoil(args);
      optim::LrSchedule schedule(args);
    });
    EXPECT_NE(message.find(w.named), std::string::npos) << "looked for " << w.named << " in: " << message;
  }
}

TEST(MergeSchedules, EqualOnesAgree) {
  const optim::ScheduleArgs args = optim::schedule_args(in_iterations());
  EXPECT_EQ(optim::merge_schedules(args, args, optim::ScheduleSource::must_agree), args);
}

TEST(MergeSchedules, EachDifferenceIsRefusedWithBothWaysOut) {
  const std::pair<const char*, std::function<void(optim::ScheduleArgs&)>> changes[] = {
      {"optim.lr:", [](auto& a) { a.max_lr *= 2; }},
      {"optim.min_lr:", [](auto& a) { a.min_lr /= 2; }},
      {"optim.lr_warmup_init:", [](auto& a) { a.init_lr = 1e-4; }},
      {"optim.lr_wsd_decay_iters (", [](auto& a) { a.lr_decay_style = "WSD", a.wsd_decay_steps = 7; }},
      {"optim.lr_wsd_decay_style:", [](auto& a) { a.lr_decay_style = "WSD", a.lr_wsd_decay_style = "minus_sqrt"; }},
      {"optim.lr_warmup_iters (", [](auto& a) { ++a.lr_warmup_steps; }},
      {"optim.lr_decay_iters (", [](auto& a) { ++a.lr_decay_steps; }},
      {"optim.lr_decay_style:", [](auto& a) { a.lr_decay_style = "cosine"; }},
      {"optim.start_weight_decay (", [](auto& a) { a.start_wd /= 2; }},
      {"optim.end_weight_decay (", [](auto& a) { a.end_wd *= 2; }},
      {"train.train_iters (", [](auto& a) { ++a.wd_incr_steps; }},
      {"optim.weight_decay_incr_style:", [](auto& a) { a.wd_incr_style = "linear"; }},
  };
  const optim::ScheduleArgs saved = optim::schedule_args(in_iterations());
  for (const auto& [key, change] : changes) {
    optim::ScheduleArgs own = saved;
    change(own);
    const std::string message =
        catch_error([&] { optim::merge_schedules(own, saved, optim::ScheduleSource::must_agree); });
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_NE(message.find("override_opt_param_scheduler"), std::string::npos);
    EXPECT_NE(message.find("use_checkpoint_opt_param_scheduler"), std::string::npos);
    EXPECT_EQ(optim::merge_schedules(own, saved, optim::ScheduleSource::override_checkpoint), own);
    EXPECT_EQ(optim::merge_schedules(own, saved, optim::ScheduleSource::use_checkpoint), saved);
  }
}

TEST(MergeSchedules, OfTwoWsdSchedulesLengthAndStyleOfTheAnnealingAgree) {
  optim::ScheduleArgs saved = optim::schedule_args(in_iterations());
  saved.lr_decay_style = "WSD";
  saved.wsd_decay_steps = 80;
  saved.lr_wsd_decay_style = "linear";
  optim::ScheduleArgs own = saved;
  EXPECT_EQ(optim::merge_schedules(own, saved, optim::ScheduleSource::must_agree), saved);
  own.wsd_decay_steps = 160;
  own.lr_wsd_decay_style = "minus_sqrt";
  const std::string message =
      catch_error([&] { optim::merge_schedules(own, saved, optim::ScheduleSource::must_agree); });
  for (const char* word : {"optim.lr_wsd_decay_iters (or _samples): 160 samples here, 80 samples there",
                           "optim.lr_wsd_decay_style: minus_sqrt here, linear there"})
    EXPECT_NE(message.find(word), std::string::npos) << message;
  own.lr_decay_style = saved.lr_decay_style = "cosine";  // this schedule has no annealing
  EXPECT_EQ(optim::merge_schedules(own, saved, optim::ScheduleSource::must_agree), saved);
}

TEST(MergeSchedules, ALongerRunIsToldWhatDiffersInKeysAndSamples) {
  config::Config config = in_iterations();
  config.optim.lr_decay_iters = 0;
  const optim::ScheduleArgs saved = optim::schedule_args(config);
  config.train.train_iters *= 2;
  const optim::ScheduleArgs own = optim::schedule_args(config);
  const std::string message =
      catch_error([&] { optim::merge_schedules(own, saved, optim::ScheduleSource::must_agree); });
  for (const std::string& word : {std::string("optim.lr_decay_iters"), std::string("train.train_iters"),
                                  std::to_string(own.lr_decay_steps) + " samples here, " +
                                      std::to_string(saved.lr_decay_steps) + " samples there"})
    EXPECT_NE(message.find(word), std::string::npos) << message;
  for (const char* word : {"_steps", "max_lr", "wd_incr"})
    EXPECT_EQ(message.find(word), std::string::npos) << message;
}

}  // namespace
}  // namespace metroplex::test::lr_schedule_test
