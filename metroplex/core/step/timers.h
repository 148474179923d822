// Named timers with levels: 0 occasional work (saving, evaluating), 1 the parts of a step, 2 their details and every
// pipeline action. A timer above train.timing_log_level costs one comparison. An active timer waits for the device
// before it starts and stops, so that work counts where it was enqueued. A device error during that wait is thrown
// from the measured call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>

#include "comm/group.h"

namespace metroplex::step {

class Timers {
  using Clock = std::chrono::steady_clock;

 public:
  // `synchronize` synchronizes the device; empty: all work is synchronous.
  explicit Timers(int64_t level, std::function<void()> synchronize = nullptr)
      : level_(level), synchronize_(std::move(synchronize)) {}

  // Adds `seconds` plus the wait for work still in flight on the device.
  void add(const std::string& name, int64_t level, double seconds) {
    if (level > level_) return;
    Watch& watch = watches_[name];
    watch.seconds += seconds + synchronize();
    watch.occasional = level == 0;
    ++watch.times;
  }
  // Runs `body`, adds its time and returns its result. If `body` throws, adds nothing and does not synchronize.
  template <class Body>
  auto measure(const char* name, int64_t level, Body&& body) -> decltype(body()) {
    if (level > level_) return body();
    synchronize();
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

  // The same as two calls.
  void begin(const char* name, int64_t level) {
    if (level > level_) return;
    synchronize();
    watches_[name].started = Clock::now();
  }
  void end(const char* name, int64_t level) {
    if (level <= level_) add(name, level, seconds_since(watches_[name].started));
  }

  // Returns minimum and maximum over the ranks of `world`, one line per timer, and resets all timers. Times are ms
  // per iteration; for level 0, ms per call. Collective; rank 0 gets the text, other ranks "".
  std::string report(int64_t iterations, const comm::Group& world);

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // Synchronizes; returns the waiting time in seconds.
  double synchronize() const {
    if (!synchronize_) return 0;
    const Clock::time_point start = Clock::now();
    synchronize_();
    return seconds_since(start);
  }

  int64_t level_;
  std::function<void()> synchronize_;
  struct Watch {
    double seconds = 0;
    int64_t times = 0;
    bool occasional = false;
    Clock::time_point started;
  };
  std::map<std::string, Watch> watches_;
};

}  // namespace metroplex::step
