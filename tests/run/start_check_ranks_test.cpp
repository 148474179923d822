// Ranks on separate machines start together or not at all.
#include "run/start_check.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "support/run_ranks.h"

namespace metroplex::test::start_check_ranks_test {
namespace {

forecast::Fit needs(int64_t bytes) {
  forecast::Fit fit;
  fit.need = bytes;
  fit.have = 100;
  return fit;
}

// With `bad`, ranks 1 and 3 of four need more memory than available. Returns the ranks that report it, as "1 ".
std::string run_on_four(bool bad) {
  std::mutex mutex;
  std::string said;
  run_ranks(4, {.dp = 4}, [&](const comm::World& world) {
    const bool mine = bad && world.rank() % 2 == 1;
    const run::StartFit verdict = run::check_fit_together(
        needs(mine ? 100 + world.rank() : 100), world, [&] { return std::to_string(world.rank()); },
        [&](const std::string& text) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others wait for it
          const std::lock_guard lock(mutex);
          said += text + " ";
        });
    EXPECT_EQ(verdict.need, bad ? 103 : 100);
    EXPECT_EQ(verdict.misfit_rank, bad ? 1 : -1);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(said, bad ? "1 " : "") << "no rank returns before it is reported";
  });
  return said;
}

TEST(StartCheckRanks, AllHearThatOneDoesNotFitAndTheLowestSaysWhy) { EXPECT_EQ(run_on_four(true), "1 "); }

TEST(StartCheckRanks, WhatJustFitsStartsWithoutAWord) { EXPECT_EQ(run_on_four(false), ""); }

}  // namespace
}  // namespace metroplex::test::start_check_ranks_test
