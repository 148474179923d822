// The writer of trace files, and the time without a core.
#include "base/trace_events.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/core_wait.h"
#include "support/trace_check.h"

namespace metroplex::base::trace_events_test {
namespace {

TraceEvents some_events() {
  TraceEvents events;
  events.name_process(3, "rank \"3\"\n");
  events.name_thread(3, 7, "step");
  events.span(3, 7, "outer", "step", 1.5, 0.25);
  events.span(3, 7, "inner", "step", 1.6, 0.1, {{"bytes", "12"}, {"path", "a\\b"}});
  events.counter(3, "memory", 1.5, {{"bytes", 2.5}, {"none", 0.0 / 0.0}});
  events.flow(3, 7, 1.55, 3, 7, 1.65, "waits");
  events.flow(3, 7, 1.56, 3, 7, 1.66, "waits");
  return events;
}

TEST(TraceEvents, WriteTheirFormat) {
  const test::CheckedTrace trace = test::check_trace(some_events().json());
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  EXPECT_EQ(trace.processes.at(3), "rank \"3\"\n");
  const std::vector<test::CheckedSpan> spans = trace.row(3, "step");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].start, 1'500'000'000);
  EXPECT_EQ(spans[0].end, 1'750'000'000);
  EXPECT_EQ(spans[1].arguments.at("path"), "a\\b");
}

TEST(TraceEvents, JoinFilesOfSeveralRanks) {
  TraceEvents all, other;
  other.name_process(4, "rank 4");
  other.flow(4, 0, 0.0, 3, 7, 0.5, "waits");
  for (const std::string& events : {some_events().events(), std::string(), other.events()}) all.append(events);
  const test::CheckedTrace trace = test::check_trace(all.json());
  EXPECT_EQ(trace.problems, std::vector<std::string>{}) << "each flow has its own number";
  EXPECT_EQ(trace.processes.size(), 2u);
}

// Spans that touch in exact arithmetic may not overlap after rounding to nanoseconds.
TEST(TraceEvents, KeepSpansNestedWhenRounded) {
  TraceEvents events;
  events.name_process(0, "rank 0");
  events.name_thread(0, 0, "step");
  const double third = 1e-9 / 3;
  events.span(0, 0, "outer", "", 0, 1000 * 5 * third);
  for (int i = 0; i < 1000; ++i) events.span(0, 0, "inner", "", i * 5 * third, (i + 1) * 5 * third - i * 5 * third);
  EXPECT_EQ(test::check_trace(events.json()).problems, std::vector<std::string>{});
}

// Three busy threads share one core for 0.2 s: together they wait for 0.4 s or more, and run for at most 0.2 s.
TEST(CoreWait, CountsBusyThreadsOfOneCore) {
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) {
      CPU_SET(core, &one);
      break;
    }
  }
  std::atomic<double> waited = 0;
  const auto work = [&] {
    sched_setaffinity(0, sizeof one, &one);
    const double before = seconds_without_core();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < end) {}
    waited += seconds_without_core() - before;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(waited, 0.3);
}

}  // namespace
}  // namespace metroplex::base::trace_events_test
