#include "data/sampler.h"

#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/dealt_samples.h"

namespace metroplex::data::sampler_test {
namespace {

SamplerOptions make_options(SamplerType type, int64_t total, int64_t consumed, int64_t micro, int64_t dp) {
  SamplerOptions options;
  options.type = type;
  options.total_samples = total;
  options.consumed_samples = consumed;
  options.micro_batch_size = micro;
  options.dp_size = dp;
  return options;
}

// The sets of samples of `steps` global steps, all ranks together.
std::vector<std::set<int64_t>> draw_steps(SamplerOptions options, int steps) {
  std::vector<Sampler> ranks;
  for (options.dp_index = 0; options.dp_index < options.dp_size; ++options.dp_index) ranks.emplace_back(options);
  std::vector<std::set<int64_t>> out(static_cast<size_t>(steps));
  std::vector<int64_t> batch;
  for (auto& step : out) {
    for (Sampler& rank : ranks) {
      if (rank.next(batch)) step.insert(batch.begin(), batch.end());
    }
  }
  return out;
}

TEST(Sampler, GoesOnAnywhereAsIfItHadNeverStopped) {
  for (const auto type : {SamplerType::single, SamplerType::cyclic}) {
    for (const bool sharding : {true, false}) {
      auto options = make_options(type, 50, 0, 3, 4);
      options.data_sharding = sharding;
      const int steps = type == SamplerType::single ? 4 : 11;
      const auto whole = draw_steps(options, steps);
      for (int stop = 1; stop < steps; ++stop) {
        options.consumed_samples = 12 * stop;
        const auto rest = draw_steps(options, steps - stop);
        for (int i = 0; i + stop < steps; ++i)
          EXPECT_EQ(rest[static_cast<size_t>(i)], whole[static_cast<size_t>(i + stop)])
              << "stop " << stop << " step " << i;
      }
    }
  }
}

TEST(Sampler, GoesOnWithAnotherNumberOfRanksUnlessDataIsSharded) {
  for (const auto type : {SamplerType::single, SamplerType::cyclic}) {
    auto options = make_options(type, 48, 0, 2, 4);
    options.data_sharding = false;
    const auto whole = draw_steps(options, 6);
    options.consumed_samples = 24;
    options.dp_size = 2;
    options.micro_batch_size = 4;
    const auto rest = draw_steps(options, 3);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rest[i], whole[i + 3]) << i;
  }
}

TEST(Sampler, GivesEverySampleOncePerEpoch) {
  for (const bool sharding : {true, false}) {
    auto options = make_options(SamplerType::cyclic, 24, 0, 2, 3);
    options.data_sharding = sharding;
    const auto steps = draw_steps(options, 8);
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      std::set<int64_t> seen;
      for (size_t i = 0; i < 4; ++i) seen.insert(steps[4 * epoch + i].begin(), steps[4 * epoch + i].end());
      EXPECT_EQ(seen.size(), 24u);
    }
    EXPECT_NE(steps[0], steps[4]) << "each epoch has an order of its own";
  }
}

TEST(Sampler, GivesAllRanksEquallyManyBatchesWhenTheEpochDoesNotDivide) {
  auto options = make_options(SamplerType::cyclic, 30, 0, 2, 4);
  options.data_sharding = false;
  const auto steps = draw_steps(options, 4);
  std::set<int64_t> seen;
  for (size_t i = 0; i < 3; ++i) seen.insert(steps[i].begin(), steps[i].end());
  EXPECT_EQ(seen.size(), 24u);
  options.consumed_samples = 24;
  EXPECT_EQ(draw_steps(options, 1)[0], steps[3]) << "the next epoch begins for all of them";
}

TEST(Sampler, EndsTheSingleWalk) {
  Sampler sampler(make_options(SamplerType::single, 7, 0, 2, 1));
  std::vector<int64_t> batch;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sampler.next(batch));
  EXPECT_FALSE(sampler.next(batch));
  EXPECT_TRUE(batch.empty());
  EXPECT_FALSE(sampler.next(batch));
}

// 3 of 7 samples are left: a full batch for the first of two ranks, none for the second.
TEST(Sampler, EndsForAllRanksWhereOneHasNoWholeBatch) {
  for (const int64_t rank : {0, 1}) {
    auto options = make_options(SamplerType::single, 7, 4, 2, 2);
    options.dp_index = rank;
    std::vector<int64_t> batch;
    EXPECT_FALSE(Sampler(options).next(batch)) << rank;
  }
}

// One evaluation per interval and one at the end, each of eval_iters batches.
TEST(SampleCounts, IncludeTheLastEvaluation) {
  SampleCountOptions options{.train_iters = 10, .global_batch_size = 4, .eval_interval = 3, .eval_iters = 2};
  EXPECT_EQ(sample_counts(options).train, 40);
  EXPECT_EQ(sample_counts(options).valid, (3 + 1) * 2 * 4);
  EXPECT_EQ(sample_counts(options).test, 2 * 4);
  options.eval_global_batch_size = 6;
  EXPECT_EQ(sample_counts(options).valid, (3 + 1) * 2 * 6);
}

TEST(Sampler, RefusesWhatCannotBe) {
  EXPECT_THROW(Sampler(make_options(SamplerType::single, 0, 0, 1, 1)), base::Error);
  EXPECT_THROW(Sampler(make_options(SamplerType::single, 10, 10, 1, 1)), base::Error);
  EXPECT_THROW(Sampler(make_options(SamplerType::single, 10, 0, 0, 1)), base::Error);
  EXPECT_THROW(Sampler(make_options(SamplerType::single, 10, -1, 1, 1)), base::Error);
  EXPECT_THROW(Sampler(make_options(SamplerType::cyclic, 7, 0, 4, 2)), base::Error);
  EXPECT_THROW(Sampler(make_options(SamplerType::cyclic, 16, 3, 2, 2)), base::Error);
}

TEST(Sampler, RefusesAGlobalBatchThatDoesNotDivide) {
  EXPECT_THROW(test::global_batch_indices(0, 10, make_options(SamplerType::single, 100, 0, 2, 4)), base::Error);
}

}  // namespace
}  // namespace metroplex::data::sampler_test
