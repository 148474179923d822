// Rates that steps read from a table by their number equal those of the schedules, for any events between the steps.
#include "optim/param_groups.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "distributed/tools.h"
#include "optim/judged.h"

namespace metroplex::test::rate_table_test {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.95;

// Three groups: with weight decay, without, and with its own rate.
struct Table {
  Table() : params(some_params()), groups(config(), pointers(params)), rates({}, 3, kBeta1, kBeta2) {}
  static config::Optim config() {
    config::Optim config;
    config.decoupled_lr = 0.01;
    return config;
  }
  static std::vector<nn::Param> some_params() {
    std::vector<nn::Param> all{make_param("weight", values({2, 2}, 1)), make_param("bias", values({2}, 2)),
                               make_param("embedding", values({3, 2}, 3))};
    all[1].placement.role = topology::Role::bias;
    all[2].placement.role = topology::Role::embedding;
    return all;
  }

  std::vector<nn::Param> params;
  optim::ParamGroups groups;
  optim::RateTable rates;
  optim::StepState state{{}, 3};
};

optim::LrSchedule schedule(double lr) {
  optim::ScheduleArgs args;
  args.max_lr = lr;
  args.lr_warmup_steps = 40;
  args.lr_decay_steps = 900;
  args.lr_decay_style = "cosine";
  args.start_wd = 0.01;
  args.end_wd = 0.1;
  args.wd_incr_steps = 900;
  args.wd_incr_style = "linear";
  return optim::LrSchedule(args);
}

// Makes the decision of a step that updates or not, and compares its rates to the last bit.
void expect_rates(Table& table, const optim::LrSchedule& of, int64_t steps, int64_t samples, bool updates) {
  kernels::StepRules rules;
  rules.skip_threshold = updates ? std::numeric_limits<double>::infinity() : 0.0;
  rules.groups = 3;
  rules.rows = optim::RateTable::kRows;
  const kernels::StepSums sums;
  const double numbers[] = {1, 0, 0};
  kernels::StepVerdict verdict;
  ASSERT_EQ(table.state.values()->steps, static_cast<double>(steps));
  kernels::judge_step(rules,
                      {table.state.values(), table.state.rates(),
                       static_cast<const double*>(table.rates.tensor().const_data_ptr()), &sums, numbers, &verdict});
  ASSERT_EQ(verdict.updates, updates ? 1 : 0);
  EXPECT_EQ(verdict.lr, of.lr(samples));
  const std::vector<optim::GroupRates> want = table.groups.rates(of, samples);
  for (size_t g = 0; g < want.size(); ++g) {
    const kernels::GroupRates right =
        kernels::group_rates(want[g].lr, want[g].weight_decay, kBeta1, kBeta2, steps + 1);
    const kernels::GroupRates& got = table.state.rates()[g];
    EXPECT_EQ(got.lr, right.lr);
    EXPECT_EQ(got.weight_decay, right.weight_decay);
    EXPECT_EQ(got.keep, right.keep);
    EXPECT_EQ(got.step_size, right.step_size);
    EXPECT_EQ(got.unbias, right.unbias);
  }
}

TEST(RateTable, EveryStepTakesTheRatesOfItsSamplesThroughSkipsRampsAndChunks) {
  Table table;
  ASSERT_EQ(table.groups.factors().size(), 3u);
  optim::LrSchedule now = schedule(0.1);
  int64_t steps = 0, samples = 0;
  for (int64_t i = 0; i < 300; ++i) {
    SCOPED_TRACE(testing::Message() << "step " << i);
    const int64_t batch = i < 90 ? 2 : 4;  // a ramp
    if (i == 200) {                        // as after loading, with other settings
      now = schedule(0.05);
      table.rates.invalidate();
    }
    table.rates.cover(now, table.groups, {steps, samples, batch});
    const bool updates = i % 7 != 3;
    expect_rates(table, now, steps, samples, updates);
    if (!updates) continue;
    ++steps;
    samples += batch;
  }
  EXPECT_GT(steps, 3 * optim::RateTable::kRows);
}

// Steps that the host has not read yet find their rows: the table covers those after the last step that it has read.
TEST(RateTable, StepsThatTheHostHasNotHeardOfFindTheirRows) {
  Table table;
  const optim::LrSchedule of = schedule(0.1);
  for (int64_t step = 0; step < optim::RateTable::kRows; ++step) {
    table.rates.cover(of, table.groups, {0, 0, 2});
    expect_rates(table, of, step, 2 * step, true);
  }
}

TEST(RateTable, IsWrittenOnlyWhereItMustBe) {
  Table table;
  const optim::LrSchedule of = schedule(0.1);
  const auto written = [&](const optim::RateTable::Position& next) {
    table.rates.tensor().fill_(-1);
    table.rates.cover(of, table.groups, next);
    return table.rates.tensor().max().item<double>() > -1;
  };
  const void* const memory = table.rates.tensor().const_data_ptr();
  EXPECT_TRUE(written({10, 20, 2}));
  EXPECT_FALSE(written({10, 20, 2}));
  EXPECT_FALSE(written({10 + optim::RateTable::kRows - 1, 20 + 2 * (optim::RateTable::kRows - 1), 2}));
  EXPECT_TRUE(written({10 + optim::RateTable::kRows, 20 + 2 * optim::RateTable::kRows, 2})) << "after the last row";
  EXPECT_TRUE(written({9, 18, 2})) << "before the first one";
  EXPECT_TRUE(written({10, 21, 2})) << "other samples";
  EXPECT_TRUE(written({10, 21, 3})) << "another batch";
  table.rates.invalidate();
  EXPECT_TRUE(written({10, 21, 3}));
  EXPECT_EQ(table.rates.tensor().const_data_ptr(), memory);
}

}  // namespace
}  // namespace metroplex::test::rate_table_test
