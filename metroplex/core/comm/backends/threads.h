// N ranks as threads of one process. The ranks of a group meet at a numbered operation. The last rank to arrive does
// the work, helped by the waiting ranks, so an operation progresses while its owner computes. A rank that fails
// aborts the hub: pending waits of all other ranks throw its cause at once.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/group.h"

namespace metroplex::comm {

struct HubOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of one wait
  bool rendezvous = false;  // a send completes only when it is received; false: the hub buffers it
  RankFormatter rank_name = format_rank;
};

class HubState;

class Hub {
 public:
  explicit Hub(int world_size, HubOptions options = {});
  // Returns the communicator of a group as seen from `rank`. All members must pass the same spec.
  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec, int rank) const;
  // Records the first cause. From now on all waits throw PeerFailure("<rank> failed: <cause>").
  void abort(int rank, const std::string& cause) const;
  // Declares that this rank issues no more operations. Ranks that wait for it fail at once instead of at the timeout.
  void leave(int rank) const;

 private:
  std::shared_ptr<HubState> state_;
};

}  // namespace metroplex::comm
