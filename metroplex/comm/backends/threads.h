// N ranks as threads of one process. The ranks of a group meet at a numbered operation; the last one to come, helped
// by those that wait, does the work on everybody's memory, so an operation makes progress while its owner computes.
// A rank that fails aborts the hub: every wait of every other rank throws its cause at once.
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
  DescribeRank describe = describe_plainly;
};

class HubState;

class Hub {
 public:
  explicit Hub(int world_size, HubOptions options = {});
  // The communicator of a group seen from `rank`. Every member asks with the same spec.
  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec, int rank) const;
  // The first cause counts. All waits throw PeerFailure("<rank in words> failed: <cause>") from now on.
  void abort(int rank, const std::string& cause) const;
  // This rank issues nothing any more: ranks that wait for it fail at once instead of at the timeout.
  void leave(int rank) const;

 private:
  std::shared_ptr<HubState> state_;
};

}  // namespace metroplex::comm
