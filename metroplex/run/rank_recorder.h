// Times the group calls of one rank, and passes every recorded call to an observer. The trainer computes with a World
// that reports to it (World::recorded) if train.trace_file, train.log_slowest_rank or train.machine is set.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/launch_point.h"

namespace metroplex::run {

class RankRecorder final : public device::Recorder {
 public:
  using Clock = std::chrono::steady_clock;
  using Observer = std::function<void(const device::Operation&, Clock::time_point start, Clock::time_point end)>;

  struct GroupCalls {
    std::vector<int> ranks;  // global
    double seconds = 0;      // the host's time in their starts and waits
  };

  void run(device::Operation operation) override;
  void joins(const std::string& group, const std::string& purpose, const std::vector<int>& ranks) override;
  // Receives every operator and group call after it has run. Replaces the observer; empty: none.
  void observe(Observer observer) { observer_ = std::move(observer); }

  // Totals of all group calls: the host's time in their starts and waits, and their group_bytes().
  double total_seconds() const { return seconds_; }
  int64_t total_bytes() const { return bytes_; }
  // By the name of the group.
  const std::map<std::string, GroupCalls>& groups() const { return groups_; }

 private:
  Observer observer_;
  std::map<std::string, GroupCalls> groups_;
  double seconds_ = 0;
  int64_t bytes_ = 0;
};

// Bytes of a group call on this rank: the larger of its input and its output; for a batch of p2p transfers their sum.
int64_t group_bytes(const device::Operation& operation);

}  // namespace metroplex::run
