// Virtual time for ranks that are threads, as if each rank had its own core and link. A rank's clock advances with
// the CPU time of its thread and pauses inside backend calls. It jumps to the end of an operation that the rank waits
// for (price/link_timeline.h). A few cores can thus measure the waiting times of many ranks.
//
// CPU time of other threads is not counted, so libtorch must run on one thread (run_threads checks this). Two
// concurrent operations on different communicators each get the full link bandwidth.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/backends/backend.h"
#include "price/link_timeline.h"
#include "comm/group.h"
#include "comm/launch.h"
#include "device/thread_time.h"

namespace metroplex::clock {

// Time that a rank waited for operations of a group, including waits that returned at once.
struct WaitTime {
  int64_t waits = 0;
  double seconds = 0;
  // The part of `seconds` after the operation started. Before that, other members or the link were late.
  double link_seconds = 0;
};

struct RankTime {
  double compute_s = 0;
  std::map<std::pair<std::string, comm::Purpose>, WaitTime> waits;  // keyed by the communicator's name and purpose
  double waiting_s() const;
  double total_s() const { return compute_s + waiting_s(); }
};
RankTime operator-(const RankTime& later, const RankTime& earlier);

class VirtualClock final : public comm::RankObserver, public std::enable_shared_from_this<VirtualClock> {
 public:
  using CpuClock = std::function<double(int rank)>;  // CPU seconds of the calling thread, which runs `rank`
  explicit VirtualClock(
      int world_size, const price::LinkCost& link = {},
      CpuClock cpu = [](int /*rank*/) { return device::thread_cpu_seconds(); });
  int world_size() const { return static_cast<int>(ranks_.size()); }

  // Throws base::Error("comm") unless the clock is for `world_size` ranks, threads_per_rank is 1 and gpu is -1.
  void check(int world_size, const comm::ThreadsOptions& options) const override;
  void start(int rank) override;  // sets the clock to 0
  void stop(int rank) override;   // the clock cannot start again
  std::shared_ptr<comm::GroupBackend> wrap(const comm::GroupSpec& group, int rank,
                                           const comm::ThreadsOptions& options,
                                           std::shared_ptr<comm::GroupBackend> inner) override;
  // Call it on the rank's thread, or after stop().
  double now(int rank);
  RankTime of(int rank);
  // Requires that all ranks have stopped.
  std::vector<RankTime> report();

  // For the backend, on the rank's thread. CPU time between pause and resume is not counted.
  void pause(int rank);
  void resume(int rank);
  // Advances a paused rank to the end of an operation of `group`.
  void wait_for(int rank, const price::LinkUse& use, const comm::GroupSpec& group);
  // Returns the timeline of a communicator, shared by all members.
  std::shared_ptr<price::LinkTimeline> timeline(const comm::GroupSpec& group);

 private:
  struct Rank {
    double now_s = 0;
    double cpu_s = 0;  // CPU time counted so far
    bool running = false, started = false;
    std::thread::id thread{};
    RankTime time{};
  };
  Rank& rank_state(int rank);
  void count(int rank, Rank& mine);

  const price::LinkCost link_;
  const CpuClock cpu_;
  std::vector<Rank> ranks_;  // each accessed only by its own thread
  std::mutex mutex_;
  std::map<comm::GroupSpec, std::shared_ptr<price::LinkTimeline>> timelines_;
};

// A backend that stamps every operation with the virtual clock of the calling rank and forwards it to `inner`.
//
// An operation costs price::LinkCost::seconds of the largest number of bytes that a member sends or receives, for n
// members:
//   - all_gather, reduce_scatter: (n - 1) / n of the full tensor; all_reduce: twice that
//   - broadcast, send, recv: the tensor. The receives of a batch share the receiver's link and end together
//   - all_to_all, exchange_rows: the larger of the rows sent to and received from other members. For exchange_rows up
//     to `capacity` rows per member count as sent, even if the receiver has no space for them
//   - fetch_rows, return_rows: each row separately, with its latency; no member waits for rows of others. Rows are
//     relayed as in relay_hops (owned_rows.h) as soon as they arrive, whether or not their member waits. The
//     additions of return_rows take no time
//   - gather: the receives of member 0
//   - barrier: the latency
struct ClockedMember {
  comm::GroupSpec group;
  int rank = 0;             // global rank of the caller
  bool sends_wait = false;  // a send ends with its receive (HubOptions::rendezvous); false: at once
};

// Requires CPU tensors. `inner` must complete a wait only after all participants have issued the operation.
std::shared_ptr<comm::GroupBackend> make_clocked_backend(const ClockedMember& context,
                                                         std::shared_ptr<VirtualClock> clock,
                                                         std::shared_ptr<comm::GroupBackend> inner);

}  // namespace metroplex::clock
