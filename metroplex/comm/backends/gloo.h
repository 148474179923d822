// Ranks as processes on CPUs, over c10d's Gloo. One full mesh of the world carries all groups: every operation is
// made of tagged sends and receives, so sums are taken in group order here too and operations of different groups
// never wait for each other. A send completes only when its receiver has asked for it. Without the full mesh (what
// comes along with NCCL) a group connects its members at its first operation, a large one as a tree.
//
// Failure: backends/watch_tree.h brings the cause of another rank's end, and all waits throw it.
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
#include "comm/world.h"

namespace metroplex::comm {

struct GlooOptions {
  int rank = 0;
  int world_size = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;
  int listen_fd = -1;        // rank 0: an open listening socket of master_port, -1: the store opens one
  bool agent_store = false;  // the launcher serves the store: rank 0 is a client too
  std::string secret{};      // equal on all ranks, unknown to others; "": the store hands out a random one
  int64_t attempt = 0;       // of the launcher, whose store may outlive one
  bool meet_first = false;   // before anything else all ranks wait for each other, or for the refusal of one
  bool full_mesh = true;
  // Network interfaces, "eth0" or "eth0,eth1"; "": the loopback for a master there, else the one that leads to it.
  std::string interface;
  std::string interface_source = "the network interface";  // who named it, for errors
  bool other_machines = false;                             // some ranks are not on this one
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  DescribeRank describe = describe_plainly;
  // Called from the monitor thread when this process has not stopped within `grace` after another rank failed (it may
  // be computing, or blocked where nothing can wake it), or within `own_grace` after fail() here (its communicators
  // may not let themselves be destroyed). Meant to end the process; may be empty.
  std::function<void(const std::exception_ptr& failure)> on_stuck;
  std::chrono::milliseconds grace{600};
  std::chrono::milliseconds own_grace{5000};
};

// Short, and different for different groups.
std::string group_key(const GroupSpec& spec);

// For tensors in host memory beside NCCL: up to kTreeBase ranks a group of their own from `make_small`, above it a
// tree of such groups (backends/tree.h), so that a rank of 16,384 holds some tens of connections and most hold one.
std::shared_ptr<GroupBackend> make_host_backend(const GroupSpec& spec, int rank, const GroupFactory& make_small);

// Instead of a GlooContext with meet_first, by a rank that cannot start: the others' constructors throw `cause`.
// Rank 0 returns when they have heard of it, or after 20 s. Throws nothing.
void tell_refusal(GlooOptions options, const std::string& cause);

class GlooState;

// One per process. Destroy it after all groups are done with: it says good-bye to the other ranks.
class GlooContext {
 public:
  explicit GlooContext(GlooOptions options);
  ~GlooContext();
  GlooContext(const GlooContext&) = delete;
  GlooContext& operator=(const GlooContext&) = delete;

  // Members may ask in any order and at any time, with the same spec. Without the full mesh a group of more than
  // kTreeBase ranks takes no all_to_all and no p2p.
  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec);
  // Tells all other ranks that this one failed (or what it heard of another one's failure); returns when they know or
  // have had time to.
  void fail(const std::exception_ptr& exception);
  GlooState& state() { return *state_; }

 private:
  std::shared_ptr<GroupBackend> mesh_backend(const GroupSpec& spec);

  std::shared_ptr<GlooState> state_;
};

}  // namespace metroplex::comm
