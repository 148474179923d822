// Named stop watches with levels: 0 the step, 1 its parts, 2 every action of the pipeline. A timer above the level
// that was asked for costs one comparison. Work that a device still does when it is asked for the time counts to the
// timer that enqueued it: one that counts waits for the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

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
    if (level <= level_) seconds_[name] += seconds + settle();
  }
  // Adds the time until the returned object dies.
  class Scope {
   public:
    Scope(Timers& timers, const char* name, int64_t level) : timers_(timers), name_(name), level_(level) {
      if (level_ > timers_.level_) return;
      timers_.settle();
      start_ = Clock::now();
    }
    ~Scope() {
      if (level_ <= timers_.level_) timers_.add(name_, level_, seconds_since(start_));
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Timers& timers_;
    const char* name_;
    int64_t level_;
    Clock::time_point start_;
  };
  Scope scope(const char* name, int64_t level) { return {*this, name, level}; }

  // Minimum and maximum over the ranks of `world`, in ms per iteration, one line a timer; starts anew. Collective;
  // rank 0 gets the text, the others "".
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
  std::map<std::string, double> seconds_;
};

}  // namespace metroplex::train
