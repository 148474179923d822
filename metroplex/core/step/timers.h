// Named timers with levels: 0 occasional work (saving, evaluating), 1 the parts of a step, 2 their details and every
// pipeline action. A timer above train.timing_log_level costs one comparison. An active timer waits for the device
// before it starts and stops, so that work counts where it was enqueued. A device error during that wait is thrown
// from the measured call. An observer receives the parts of all levels, without waits for the device.
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
 public:
  using Clock = std::chrono::steady_clock;
  using Observer = std::function<void(const std::string& name, Clock::time_point start, Clock::time_point end)>;
  static constexpr int64_t kObserverOnly = 3;  // level of a part that only the observer receives

  // `synchronize` synchronizes the device; empty: all work is synchronous.
  explicit Timers(int64_t level, std::function<void()> synchronize = nullptr)
      : level_(level), synchronize_(std::move(synchronize)) {}

  // Replaces the observer; empty: none.
  void observe(Observer observer) { observer_ = std::move(observer); }
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
    if (!is_active(level)) return body();
    const Clock::time_point start = start_part(level);
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      finish_part(name, level, start);
    } else {
      auto result = body();
      finish_part(name, level, start);
      return result;
    }
  }

  // The same as two calls.
  void begin(const char* name, int64_t level) {
    if (is_active(level)) started_[name] = start_part(level);
  }
  void end(const char* name, int64_t level) {
    if (is_active(level)) finish_part(name, level, started_[name]);
  }

  // Returns minimum and maximum over the ranks of `world`, one line per timer, and resets all timers. Times are ms
  // per iteration; for level 0, ms per call. Collective; rank 0 gets the text, other ranks "".
  std::string report(int64_t iterations, const comm::Group& world);

 private:
  bool is_active(int64_t level) const { return level <= level_ || observer_; }
  Clock::time_point start_part(int64_t level) const {
    if (level <= level_) synchronize();
    return Clock::now();
  }
  void finish_part(const std::string& name, int64_t level, Clock::time_point start) {
    if (observer_) observer_(name, start, Clock::now());
    add(name, level, seconds_since(start));
  }
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
  };
  std::map<std::string, Watch> watches_;
  std::map<std::string, Clock::time_point> started_;  // by begin()
  Observer observer_;
};

}  // namespace metroplex::step
