#include "data/loader.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"

namespace metroplex::data::loader_test {
namespace {

class CountingDataset final : public Dataset {
 public:
  explicit CountingDataset(int64_t size, int64_t broken = -2) : size_(size), broken_(broken) {}
  int64_t size() const override { return size_; }
  void get(int64_t index, Sample& out) const override {
    MPX_CHECK(index != broken_, "data", "sample ", index, " is broken");
    out.index = index;
    out.tokens.assign(3, index);
    ++reads;
  }
  mutable std::atomic<int> reads{0};

 private:
  int64_t size_, broken_;
};

SamplerOptions two_at_a_time() {
  SamplerOptions options;
  options.micro_batch_size = 2;
  return options;
}

TEST(Loader, GivesTheSameOrderWithAnyPrefetch) {
  for (const auto& [prefetch, threads] : {std::pair{0, 1}, {1, 1}, {2, 1}, {7, 1}, {1, 3}, {4, 2}, {9, 5}}) {
    Loader loader(std::make_shared<CountingDataset>(11), two_at_a_time(), prefetch, threads);
    std::vector<Sample> batch;
    for (int64_t i = 0; i < 10; i += 2) {
      ASSERT_TRUE(loader.next(batch));
      ASSERT_EQ(batch.size(), 2u);
      EXPECT_EQ(batch[0].tokens, std::vector<int64_t>(3, i));
      EXPECT_EQ(batch[1].index, i + 1);
    }
    EXPECT_FALSE(loader.next(batch));
    EXPECT_FALSE(loader.next(batch)) << "the end stays the end";
  }
}

TEST(Loader, ThrowsWhatTheDatasetThrewAtItsPlace) {
  for (const auto& [prefetch, threads] : {std::pair{0, 1}, {3, 1}, {4, 3}}) {
    Loader loader(std::make_shared<CountingDataset>(20, 5), two_at_a_time(), prefetch, threads);
    std::vector<Sample> batch;
    EXPECT_TRUE(loader.next(batch));
    EXPECT_TRUE(loader.next(batch));
    EXPECT_THROW(loader.next(batch), base::Error);
  }
}

TEST(Loader, ThrowsAgainWhenAskedAgain) {
  Loader loader(std::make_shared<CountingDataset>(20, 0), two_at_a_time(), 2);
  std::vector<Sample> batch;
  for (int i = 0; i < 3; ++i) EXPECT_THROW(loader.next(batch), base::Error);
}

TEST(Loader, ReadsAheadButNotTooFar) {
  const auto dataset = std::make_shared<CountingDataset>(1000);
  Loader loader(dataset, two_at_a_time(), 3);
  for (int i = 0; i < 400 && dataset->reads < 6; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(dataset->reads, 6);
}

// Each read waits until one read per thread is in flight.
class MeetingDataset final : public Dataset {
 public:
  explicit MeetingDataset(int together) : together_(together) {}
  int64_t size() const override { return 6; }
  void get(int64_t index, Sample& out) const override {
    out.index = index;
    std::unique_lock lock(mutex_);
    ++inside_;
    met_.notify_all();
    met = met_.wait_for(lock, std::chrono::seconds(20), [&] { return inside_ >= together_; }) && met;
  }
  mutable bool met = true;

 private:
  const int together_;
  mutable int inside_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable met_;
};

TEST(Loader, EveryThreadReadsAMicrobatchOfItsOwnAtTheSameTime) {
  const auto dataset = std::make_shared<MeetingDataset>(3);
  SamplerOptions options;
  options.micro_batch_size = 2;
  Loader loader(dataset, options, 3, 3);
  std::vector<Sample> batch;
  for (int64_t i = 0; i < 6; i += 2) {
    ASSERT_TRUE(loader.next(batch));
    EXPECT_EQ(batch[0].index, i);
  }
  EXPECT_TRUE(dataset->met) << "three threads never read at once";
}

TEST(Loader, StopsCleanlyAtAnyMoment) {
  for (int i = 0; i < 50; ++i) {
    Loader loader(std::make_shared<CountingDataset>(1000), two_at_a_time(), 2);
    std::vector<Sample> batch;
    for (int taken = 0; taken < i % 4; ++taken) EXPECT_TRUE(loader.next(batch));
  }
}

TEST(Loader, RefusesADatasetWithoutSamples) {
  EXPECT_THROW(Loader(std::make_shared<CountingDataset>(0), two_at_a_time(), 2), base::Error);
}

}  // namespace
}  // namespace metroplex::data::loader_test
