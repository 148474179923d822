// Ranks wait without a timeout for long work on other ranks, but not for a failed rank.
#include "run/long_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "comm/collectives.h"
#include "support/run_ranks.h"

namespace metroplex::test::long_work_ranks_test {
namespace {

constexpr std::chrono::seconds kTimeout{3};
constexpr std::chrono::milliseconds kLong{4500};

std::string outcome(const comm::RankBody& body) {
  try {
    comm::run_threads(3, make_grid(3, {.dp = 3}), {kTimeout}, body);
  } catch (...) { return comm::failure_cause(std::current_exception()); }
  return "done";
}

TEST(LongWork, IsWaitedForBeyondTheTimeoutOfACollective) {
  const auto plainly = outcome([](const comm::World& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(kLong);
    comm::barrier(world.groups().world);
  });
  ASSERT_NE(plainly, "done") << "there is no timeout that this could be held against";
  std::atomic<int> ends = 0;
  EXPECT_EQ(outcome([&](const comm::World& world) {
              const bool works = world.rank() == 1;
              const auto mine = std::make_shared<bool>(false);
              run::run_with_peers(
                  [mine, works] {
                    if (works) std::this_thread::sleep_for(kLong);
                    *mine = true;
                  },
                  world);
              ends += *mine;
              comm::barrier(world.groups().world);
            }),
            "done");
  EXPECT_EQ(ends, 3);
}

TEST(LongWork, ThatThrowsEndsTheOthersWithItsCause) {
  std::atomic<int> told = 0;
  const std::string cause = outcome([&](const comm::World& world) {
    try {
      run::run_with_peers([rank = world.rank()] { MPX_CHECK(rank != 1, "data", "corpus.idx was removed"); }, world);
    } catch (const std::exception& error) {
      told += std::string(error.what()).find("corpus.idx was removed") != std::string::npos;
      throw;
    }
  });
  EXPECT_NE(cause.find("corpus.idx was removed"), std::string::npos) << cause;
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace metroplex::test::long_work_ranks_test
