// Ranks as processes on CPUs, over c10d's Gloo. One full mesh of the world carries all groups: every operation is
// made of tagged sends and receives, so sums are taken in group order here too and operations of different groups
// never wait for each other. A send completes only when its receiver has asked for it.
//
// Failure: a rank that fails writes its cause into the store; a monitor thread of every process reads it within a
// tenth of a second and makes all waits throw it. A peer that dies closes its connections, which is noticed at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/group.h"

namespace metroplex::comm {

struct GlooOptions {
  int rank = 0;
  int world_size = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;
  int listen_fd = -1;        // rank 0: an open listening socket of master_port, -1: the store opens one
  bool agent_store = false;  // the launcher serves the store: rank 0 is a client too
  std::string
      interface;  // network interface of the mesh; "": loopback for a loopback master, else that of the host name
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  DescribeRank describe = describe_plainly;
  // Called from the monitor thread when this process has not stopped within `grace` after another rank failed (it may
  // be computing, or blocked where nothing can wake it), or within `own_grace` after fail() here (its communicators
  // may not let themselves be destroyed). Meant to end the process; may be empty.
  std::function<void(const std::exception_ptr& failure)> on_stuck;
  std::chrono::milliseconds grace{600};
  std::chrono::milliseconds own_grace{5000};
};

class GlooState;

// One per process. Destroy it after all groups are done with: it says good-bye to the other ranks.
class GlooContext {
 public:
  explicit GlooContext(GlooOptions options);
  ~GlooContext();
  GlooContext(const GlooContext&) = delete;
  GlooContext& operator=(const GlooContext&) = delete;

  // Members may ask in any order and at any time; all use the same name and ranks.
  std::shared_ptr<GroupBackend> backend(const std::string& name, const std::vector<int>& ranks);
  Group group(const std::string& name, const std::vector<int>& ranks);
  // Tells all other ranks that this one failed (or what it heard of another one's failure); returns when they know or
  // have had time to.
  void fail(const std::exception_ptr& exception);
  GlooState& state() { return *state_; }

 private:
  std::shared_ptr<GlooState> state_;
};

}  // namespace metroplex::comm
