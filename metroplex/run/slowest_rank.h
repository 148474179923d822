// Finds the slowest rank of a log interval (train.log_slowest_rank), and why the other ranks wait for it. All times
// are sums over the interval's steps, from the loader to the step's metrics, without saves and evaluations:
//   - communication: the host's time in group calls, their starts and their waits
//   - own: the rest of the step
//   - loader: the part of own time in which the rank makes its microbatches
//   - without a core: the rank's thread was ready, but no core was free
// On a GPU these times do not show which rank is slow, because the host only issues work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "run/rank_recorder.h"

namespace metroplex::run {

struct RankTimes {  // seconds, except bytes
  double wall = 0, communication = 0, loader = 0, without_core = 0;
  double bytes = 0;  // of group calls
  double own() const { return wall - communication; }
};

struct SlowestRank {
  int64_t from = 0, to = 0;  // iterations
  int rank = 0;
  std::string why;     // own work | loader | host | link | balanced
  double seconds = 0;  // per step: own time above the median; for link, the rank's communication
  std::string text;    // one sentence
};

// The slowest rank is the rank with the most own time. Its excess is its own time minus the median over the ranks.
//   - Up to kBalanced of the step: link if the rank communicates for more than half of the step, else balanced.
//   - Otherwise loader, or host, if the rank's time in the loader, or without a core, exceeds its median by more than
//     half of the excess; else own work.
// `ranks` has two or more entries, each over `steps` steps.
inline constexpr double kBalanced = 0.05;
SlowestRank find_slowest(const std::vector<RankTimes>& ranks, int64_t steps);

// Measures RankTimes of this rank.
class RankTimer {
 public:
  // The rank's group calls must report to `recorder`.
  explicit RankTimer(const RankRecorder& recorder) : recorder_(recorder) {}

  void begin_step();
  void end_step();
  // Call around the loader.
  void begin_loading();
  void end_loading();
  // Returns the slowest rank of the steps since the last call on rank 0, and nothing on other ranks. Collective.
  std::optional<SlowestRank> report(const comm::World& world, int64_t iteration);

 private:
  struct Reading {
    RankRecorder::Clock::time_point time;
    double communication = 0, without_core = 0;
    int64_t bytes = 0;
  };
  Reading read() const;

  const RankRecorder& recorder_;
  RankTimes times_;
  int64_t steps_ = 0;
  Reading step_start_, loading_start_;
};

}  // namespace metroplex::run
