#include "clock/virtual_clock.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::clock {

double RankTime::waiting_s() const {
  double sum = 0;
  for (const auto& [group, wait] : waits) sum += wait.seconds;
  return sum;
}

RankTime operator-(const RankTime& later, const RankTime& earlier) {
  RankTime between = later;
  between.compute_s -= earlier.compute_s;
  for (const auto& [group, before] : earlier.waits) {
    WaitTime& wait = between.waits[group];
    wait.waits -= before.waits;
    wait.seconds -= before.seconds;
    wait.link_seconds -= before.link_seconds;
  }
  return between;
}

VirtualClock::VirtualClock(int world_size, const price::LinkCost& link, CpuClock cpu)
    : link_(link), cpu_(std::move(cpu)), ranks_(static_cast<size_t>(world_size)) {
  MPX_CHECK(link.latency_s >= 0 && link.bytes_per_s > 0, "comm", "a link with a latency of ", link.latency_s,
            " s and ", link.bytes_per_s, " bytes/s; a latency is 0 or more, a bandwidth above 0 (infinity: no cost)");
}

VirtualClock::Rank& VirtualClock::rank_state(int rank) {
  MPX_ASSERT(rank >= 0 && rank < world_size(), "rank ", rank, " of a virtual clock of ", world_size(), " ranks");
  return ranks_[static_cast<size_t>(rank)];
}

void VirtualClock::check(int world_size, const comm::ThreadsOptions& options) const {
  MPX_CHECK(this->world_size() == world_size, "comm", "a virtual clock for ", this->world_size(), " ranks, but ",
            world_size, " were started; make it for as many");
  MPX_CHECK(options.threads_per_rank == 1 && options.gpu < 0, "comm",
            "a virtual clock runs with the CPU time of one thread a rank, but ranks have ", options.threads_per_rank,
            options.gpu < 0 ? " threads" : " threads and a GPU", "; set threads_per_rank to 1 and gpu to -1");
}

std::shared_ptr<comm::GroupBackend> VirtualClock::wrap(const comm::GroupSpec& group, int rank,
                                                       const comm::ThreadsOptions& options,
                                                       std::shared_ptr<comm::GroupBackend> inner) {
  return make_clocked_backend({group, rank, options.rendezvous}, shared_from_this(), std::move(inner));
}

void VirtualClock::start(int rank) {
  Rank& mine = rank_state(rank);
  MPX_CHECK(!mine.started, "comm", "the virtual clock of rank ", rank,
            " has run before; make one for each call of run_threads");
  mine.started = true;
  mine.thread = std::this_thread::get_id();
  resume(rank);
}

void VirtualClock::stop(int rank) { pause(rank); }

// Adds the CPU time since the last call.
void VirtualClock::count(int rank, Rank& mine) {
  const double cpu_s = cpu_(rank), passed = cpu_s - mine.cpu_s;
  mine.cpu_s = cpu_s;
  mine.now_s += passed;
  mine.time.compute_s += passed;
}

void VirtualClock::pause(int rank) {
  Rank& mine = rank_state(rank);
  MPX_CHECK(mine.thread == std::this_thread::get_id(), "comm", "a second thread communicates for rank ", rank,
            ", whose virtual clock runs with one; leave that work out of what the clock measures");
  MPX_ASSERT(mine.running, "the virtual clock of rank ", rank, " does not run");
  count(rank, mine);
  mine.running = false;
}

void VirtualClock::resume(int rank) {
  Rank& mine = rank_state(rank);
  mine.cpu_s = cpu_(rank);
  mine.running = true;
}

double VirtualClock::now(int rank) {
  Rank& mine = rank_state(rank);
  if (mine.running) count(rank, mine);
  return mine.now_s;
}

RankTime VirtualClock::of(int rank) {
  now(rank);
  return rank_state(rank).time;
}

std::vector<RankTime> VirtualClock::report() {
  std::vector<RankTime> times;
  for (const Rank& rank : ranks_) {
    MPX_ASSERT(!rank.running, "rank ", times.size(), " still runs");
    times.push_back(rank.time);
  }
  return times;
}

void VirtualClock::wait_for(int rank, const price::LinkUse& use, const comm::GroupSpec& group) {
  Rank& mine = rank_state(rank);
  MPX_ASSERT(!mine.running, "rank ", rank, " waits with a clock that runs");
  WaitTime& wait = mine.time.waits[{group.name, group.purpose}];
  ++wait.waits;
  if (use.end_s <= mine.now_s) return;
  wait.seconds += use.end_s - mine.now_s;
  wait.link_seconds += use.end_s - std::max(use.start_s, mine.now_s);
  mine.now_s = use.end_s;
}

std::shared_ptr<price::LinkTimeline> VirtualClock::timeline(const comm::GroupSpec& group) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<price::LinkTimeline>& timeline = timelines_[group];
  if (!timeline) timeline = std::make_shared<price::LinkTimeline>(link_, static_cast<int>(group.ranks.size()));
  return timeline;
}

}  // namespace metroplex::clock
