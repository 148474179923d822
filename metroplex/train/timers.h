// Named timers with levels: 0 occasional work (saving, evaluating), 1 the parts of a step, 2 what is inside them and
// every pipeline action. A timer above train.timing_log_level costs one comparison. An active timer waits for the
// device before it starts and before it stops, so that work is counted where it was enqueued; a device error that
// appears in that wait is thrown from the measured call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>

#include "comm/group.h"

namespace metroplex::train {

class Timers {
  using Clock = std::chrono::steady_clock;

 public:
  // `settle` waits for the device; empty: nothing is ever under way.
  explicit Timers(int64_t level, std::function<void()> settle = nullptr)
      : level_(level), settle_(std::move(settle)) {}

  // What is still under way was begun in these seconds.
  void add(const std::string& name, int64_t level, double seconds) {
    if (level > level_) return;
    Watch& watch = watches_[name];
    watch.seconds += seconds + settle();
    watch.now_and_then = level == 0;
    ++watch.times;
  }
  // Runs `body`, adds its time, and returns what it returns. Where it throws, nothing is added and nobody waits.
  template <class Body>
  auto measure(const char* name, int64_t level, Body&& body) -> decltype(body()) {
    if (level > level_) return body();
    settle();
    const Clock::time_point start = Clock::now();
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      add(name, level, seconds_since(start));
    } else {
      auto result = body();
      add(name, level, seconds_since(start));
      return result;
    }
  }

  // The same in two halves.
  void begin(const char* name, int64_t level) {
    if (level > level_) return;
    settle();
    watches_[name].begun = Clock::now();
  }
  void end(const char* name, int64_t level) {
    if (level <= level_) add(name, level, seconds_since(watches_[name].begun));
  }

  // Minimum and maximum over the ranks of `world`, one line a timer; starts anew. In ms per iteration; of level 0 in
  // ms each time. Collective; rank 0 gets the text, the others "".
  std::string report(int64_t iterations, const comm::Group& world);

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // Seconds that the device took.
  double settle() const {
    if (!settle_) return 0;
    const Clock::time_point start = Clock::now();
    settle_();
    return seconds_since(start);
  }

  int64_t level_;
  std::function<void()> settle_;
  struct Watch {
    double seconds = 0;
    int64_t times = 0;
    bool now_and_then = false;
    Clock::time_point begun;
  };
  std::map<std::string, Watch> watches_;
};

}  // namespace metroplex::train
