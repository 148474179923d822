// Ranks as CPU processes over c10d's Gloo. One full mesh of the world carries all groups. Every operation consists of
// tagged sends and receives. Sums are therefore taken in group order, and operations of different groups never wait
// for each other. A send completes only after its receive is posted. Without the full mesh (the control plane of
// NCCL), a group connects its members at its first operation; a large group connects as a tree.
//
// backends/watch_tree.h distributes the cause of a rank's failure; all pending waits then throw it.
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
  int listen_fd = -1;        // rank 0: open listening socket of master_port; -1: the store opens one
  bool agent_store = false;  // the launcher serves the store, so rank 0 is a client too
  std::string secret{};      // equal on all ranks, unknown to other processes; "": the store distributes a random one
  int64_t attempt = 0;       // restart count of the launcher, whose store may outlive one attempt
  bool meet_first = false;   // all ranks first wait for each other, or for a rank that refuses to start
  bool full_mesh = true;
  // Network interfaces, "eth0" or "eth0,eth1". "": the loopback if the master is on it, else the interface of the
  // route to the master.
  std::string interface;
  std::string interface_source = "the network interface";  // the key or variable that set `interface`, for errors
  bool other_machines = false;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  RankFormatter rank_name = format_rank;
  // The monitor thread calls it if this process has not stopped within `grace` after another rank failed. The
  // process may be computing or blocked in an uninterruptible call. It is also called if the process has not
  // stopped within `own_grace` after fail() on this rank, because destroying communicators may block. It should
  // end the process; it may be empty.
  std::function<void(const std::exception_ptr& failure)> on_stuck;
  std::chrono::milliseconds grace{600};
  std::chrono::milliseconds own_grace{5000};
};

// Sets the environment of c10d. Call it before the first gloo connection, while no other thread reads the
// environment.
void prepare_c10d();

// Short and unique per group.
std::string group_key(const GroupSpec& spec);

// Creates a backend for host tensors of NCCL ranks. Up to kTreeBase ranks share one group from `make_small`. A larger
// group is a tree of such groups (backends/tree.h), so rank 0 of 16,384 holds some tens of connections and most ranks
// hold one.
std::shared_ptr<GroupBackend> make_host_backend(const GroupSpec& spec, int rank, const GroupFactory& make_small);

// Replaces a GlooContext with meet_first on a rank that cannot start: the constructors on the other ranks throw
// `cause`. Rank 0 returns when they have read it, or after 20 s. Never throws.
void publish_refusal(GlooOptions options, const std::string& cause);

class GlooState;

// One per process. Destroy it after the last use of its groups; the destructor leaves the run together with the other
// ranks.
class GlooContext {
 public:
  explicit GlooContext(GlooOptions options);
  ~GlooContext();
  GlooContext(const GlooContext&) = delete;
  GlooContext& operator=(const GlooContext&) = delete;

  // Members may call this in any order and at any time, with the same spec. Without the full mesh a group of more
  // than kTreeBase ranks supports no all_to_all and no p2p.
  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec);
  // Reports this rank's failure (or the failure it received from another rank) to all ranks. Returns when they have
  // the cause or a time limit has passed.
  void fail(const std::exception_ptr& exception);
  GlooState& state() { return *state_; }

 private:
  std::shared_ptr<GroupBackend> mesh_backend(const GroupSpec& spec);

  std::shared_ptr<GlooState> state_;
};

}  // namespace metroplex::comm
