// Times of ranks that are threads, as if each had a core of its own and a link to the others: a rank's clock runs
// with the CPU time of its thread, stands still inside the calls of a backend, and jumps to the end of an operation
// that it waits for (timeline.h). So few cores measure what many ranks would wait for each other.
//
// What other threads compute for a rank is not seen: libtorch's operators run on one thread, and run_threads asks for
// that. Two operations at once on different communicators have the whole link each.
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
#include "comm/backends/timeline.h"
#include "comm/group.h"

namespace metroplex::comm {

// CPU time of the calling thread.
double thread_cpu_seconds();

// How long a rank waited for operations of a group: waits that were over at once count too.
struct WaitTime {
  int64_t waits = 0;
  double seconds = 0;
  double link_seconds =
      0;  // of these, while the operation was under way; before it started, others or the link were late
};

struct RankTime {
  double compute_s = 0;
  std::map<std::pair<std::string, Purpose>, WaitTime> waits;  // by the name that made the communicator, and purpose
  double waiting_s() const;
  double total_s() const { return compute_s + waiting_s(); }
};
// What has passed between two moments of a rank.
RankTime operator-(const RankTime& later, const RankTime& earlier);

class VirtualClock {
 public:
  using CpuClock = std::function<double(int rank)>;  // seconds of the calling thread, which runs `rank`
  explicit VirtualClock(
      int world_size, const LinkCost& link = {}, CpuClock cpu = [](int /*rank*/) { return thread_cpu_seconds(); });
  int world_size() const { return static_cast<int>(ranks_.size()); }

  // At 0, and for good; both in the thread that runs the rank. run_threads calls them.
  void start(int rank);
  void stop(int rank);
  // Called in the rank's thread, or after stop().
  double now(int rank);
  RankTime of(int rank);
  // Of all ranks, when all have stopped.
  std::vector<RankTime> report();

  // For the backend, in the rank's thread. Between pause and resume CPU time does not count.
  void pause(int rank);
  void resume(int rank);
  // A paused rank waits for an operation of `group`.
  void wait_for(int rank, const LinkUse& use, const GroupSpec& group);
  // That of a communicator, the same for all members.
  std::shared_ptr<Timeline> timeline(const GroupSpec& group);

 private:
  struct Rank {
    double now_s = 0;
    double cpu_s = 0;  // up to where it is counted
    bool running = false, started = false;
    std::thread::id thread{};
    RankTime time{};
  };
  Rank& rank_of(int rank);
  void count(int rank, Rank& mine);

  const LinkCost link_;
  const CpuClock cpu_;
  std::vector<Rank> ranks_;  // each touched by its own thread
  std::mutex mutex_;
  std::map<GroupSpec, std::shared_ptr<Timeline>> timelines_;
};

// A backend that stamps every operation with the virtual clock of the calling rank and hands it on to a real one.
//
// What an operation costs is LinkCost::seconds of the most bytes that a member sends or receives, n members:
//   all_gather, reduce_scatter   (n - 1) / n of the whole tensor; all_reduce twice that
//   broadcast                    the tensor
//   all_to_all, exchange_rows    the larger of the rows for others and the rows from others; of exchange_rows, those
//                                that are sent: up to `capacity` for each, whether or not there is room for them
//   fetch_rows, return_rows      each row that travels by itself, with the latency; nobody waits for rows of others.
//                                Rows are relayed as by relay_hops (owned_rows.h), passed on when they have come,
//                                whether or not their member waits by then; what adds up on their return takes no
//                                time
//   send, recv                   the tensor. The receives of a batch share the receiver's link and end together
//   gather                       as the receives of member 0
//   barrier                      the latency alone

struct ClockedSeat {
  GroupSpec group;
  int rank = 0;             // the calling one, global
  bool sends_wait = false;  // a send ends with its receive, as HubOptions::rendezvous says; false: at once
};

// Requires tensors on the CPU. `inner` completes a wait only when all that take part have issued the operation.
std::shared_ptr<GroupBackend> make_clocked_backend(const ClockedSeat& seat, std::shared_ptr<VirtualClock> clock,
                                                   std::shared_ptr<GroupBackend> inner);

}  // namespace metroplex::comm
