// Timers: levels, minimum and maximum over ranks, and a reset after each report.
#include "step/timers.h"

#include <thread>

#include "comm/collectives.h"
#include "support/run_ranks.h"

namespace metroplex::test::timers_ranks_test {
namespace {

TEST(Timers, ReportTheExtremesOverRanksPerIteration) {
  run_ranks(3, {.dp = 3}, [](const comm::World& world) {
    step::Timers timers(1);
    timers.add("forward", 1, 0.010 * (world.rank() + 1));
    timers.add("forward", 1, 0.010 * (world.rank() + 1));
    timers.add("save", 0, 1.0);
    if (world.rank() == 2) timers.add("only here", 1, 0.5);
    timers.add("too fine", 2, 1.0);
    const std::string report = timers.report(2, world.groups().world);
    for (const char* part :
         {"forward ", "(10.00, 30.00)", "save ", "(1000.00, 1000.00)", "only here ", "(250.00, 250.00)"}) {
      EXPECT_EQ(report.find(part) != std::string::npos, world.rank() == 0) << part << " in " << report;
    }
    EXPECT_EQ(report.find("too fine"), std::string::npos);
    EXPECT_EQ(timers.report(1, world.groups().world).find("forward"), std::string::npos) << "a report starts anew";
  });
}

TEST(Timers, ACallCountsItsOwnTimeAtItsLevelAndReturnsWhatItReturned) {
  step::Timers timers(0);
  const int result = timers.measure("step", 0, [&] {
    return timers.measure("part", 1, [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return 7;
    });
  });
  EXPECT_EQ(result, 7);
  const std::string report = timers.report(1, comm::Group());
  ASSERT_NE(report.find("step"), std::string::npos) << report;
  EXPECT_GE(std::stod(report.substr(report.find('(', report.find("step")) + 1)), 20.0);
  EXPECT_EQ(report.find("part"), std::string::npos);
}

TEST(Timers, WhatTheDeviceSaysWhenItIsWaitedForIsAnErrorOfTheMeasuredCall) {
  bool broken = false;
  step::Timers timers(1, [&] {
    if (broken) throw std::runtime_error("illegal memory access");
  });
  EXPECT_THROW(timers.measure("step", 1, [&] { broken = true; }), std::runtime_error);
}

TEST(Timers, TheCauseOfAFailedCallIsNotReplacedByWhatTheDeviceSaysAfterIt) {
  bool broken = false;
  step::Timers timers(1, [&] {
    if (broken) throw std::runtime_error("illegal memory access");
  });
  try {
    timers.measure("step", 1, [&] {
      broken = true;
      throw std::invalid_argument("the cause");
    });
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) { EXPECT_STREQ(error.what(), "the cause"); }
}

TEST(Timers, WhatTheDeviceStillDoesCountsToTheTimerThatEnqueuedIt) {
  double enqueued_seconds =
      0.500;  // seconds of enqueued work before the call, then of the work that the call enqueues
  step::Timers timers(1, [&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(enqueued_seconds));
    enqueued_seconds = 0;
  });
  const auto milliseconds = [](const std::string& report, const std::string& name) {
    return std::stod(report.substr(report.find('(', report.find(name)) + 1));
  };
  timers.measure("launch", 1, [&] { enqueued_seconds = 0.020; });
  enqueued_seconds = 0.010;
  timers.add("action", 1, 0.005);
  enqueued_seconds = 1.0;
  timers.add("too fine", 2, 1.0);  // does not synchronize
  EXPECT_EQ(enqueued_seconds, 1.0);
  enqueued_seconds = 0;
  const std::string report = timers.report(1, comm::Group());
  EXPECT_GE(milliseconds(report, "launch"), 20.0);
  EXPECT_LT(milliseconds(report, "launch"), 500.0) << "work from before the call";
  EXPECT_GE(milliseconds(report, "action"), 15.0);
}

}  // namespace
}  // namespace metroplex::test::timers_ranks_test
