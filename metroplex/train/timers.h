// Named stop watches with levels: 0 the step, 1 its parts, 2 every action of the pipeline. A timer above the level
// that was asked for costs one comparison.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "comm/group.h"

namespace metroplex::train {

class Timers {
 public:
  explicit Timers(int64_t level) : level_(level) {}

  void add(const std::string& name, int64_t level, double seconds) {
    if (level <= level_) seconds_[name] += seconds;
  }
  // Adds the time until the returned object dies.
  class Scope {
   public:
    Scope(Timers& timers, const char* name, int64_t level) : timers_(timers), name_(name), level_(level) {}
    ~Scope() {
      if (level_ <= timers_.level_) {
        timers_.add(name_, level_, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Timers& timers_;
    const char* name_;
    int64_t level_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };
  Scope scope(const char* name, int64_t level) { return {*this, name, level}; }

  // Minimum and maximum over the ranks of `world`, in ms per iteration, one line a timer; starts anew. Collective;
  // every rank gets the same text.
  std::string report(int64_t iterations, const comm::Group& world);

 private:
  int64_t level_;
  std::map<std::string, double> seconds_;
};

}  // namespace metroplex::train
