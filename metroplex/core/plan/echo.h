// ECHO: replicas of hot experts. Every rank owns `experts / ranks` experts and has `slots` replica slots for experts
// of other ranks. Before the rows of a layer are sent, each rank computes the same plan from the global counts. The
// plan contains the expert of each slot, and how many rows of each source rank go to the replica instead of the
// owner. It uses only integers and total orders, so all ranks get the same plan without communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model.h"

namespace metroplex::plan {

struct EchoSizes {
  int ranks = 1, experts = 1, slots = 0;

  constexpr int home_experts() const { return experts / ranks; }
  constexpr int home(int expert) const { return expert / home_experts(); }
  constexpr int replicas() const { return ranks * slots; }
  constexpr int rank_of_replica(int replica) const { return replica / slots; }
  // Destination slots of rows: for each rank its local experts, then its replica slots.
  constexpr int columns() const { return experts + replicas(); }
  constexpr int column_of_expert(int expert) const {
    return home(expert) * (home_experts() + slots) + expert % home_experts();
  }
  constexpr int column_of_replica(int replica) const {
    return rank_of_replica(replica) * (home_experts() + slots) + home_experts() + replica % slots;
  }
  bool operator==(const EchoSizes&) const = default;
};

// A non-owning view.
struct EchoCounts {
  const int64_t* rows = nullptr;  // [ranks][experts]: rows from each source rank to each expert
  EchoSizes sizes;
  int64_t at(int rank, int expert) const { return rows[int64_t{rank} * sizes.experts + expert]; }
};

using config::EchoSplit;

struct EchoOptions {
  config::EchoPlanner planner = config::EchoPlanner::capfill;
  // local_first: the replica's own rank first, then proportionally by largest remainder. breadth_then_depth:
  // proportionally, rounded down, then the lowest ranks.
  EchoSplit split = EchoSplit::local_first;
  // capfill: among plans whose maximum load is within eps_bp / 10000 of the mean, the one with the fewest replicas
  // wins.
  int64_t eps_bp = 100;
  // greedy: an owner takes its rows back while its load stays within 1 + reclaim times the mean. 0: never.
  double reclaim = 0;
  // capfill, exact: prefers an owner on the replica's node if candidates are otherwise equal. 0: no preference.
  int ranks_per_node = 0;
  // Replaces the planner in tests: owners and rows are sampled from the counts and `seed`, regardless of load. Equal
  // counts and seed give equal plans.
  bool random = false;
  uint64_t seed = 0;
  // Rounds breadth_then_depth and reclaim in float32 to reproduce plans of other programs.
  bool float32 = false;
};

struct EchoPlan {
  EchoSizes sizes;
  std::vector<int32_t> owner;        // [replicas] expert of each replica slot; -1: none
  std::vector<int64_t> rows;         // [replicas] rows of each replica; 0 if and only if it has no owner
  std::vector<int64_t> source_rows;  // [ranks][replicas]: rows from each source rank
  std::vector<int64_t> final_loads;  // [ranks]

  int64_t from(int rank, int replica) const {
    return source_rows[static_cast<size_t>(rank * sizes.replicas() + replica)];
  }
  int64_t max_load() const;
  int num_replicas() const;  // slots with an owner
  bool operator==(const EchoPlan&) const = default;
};

// State of a candidate plan. Slots are filled in order.
struct EchoFill {
  std::vector<int32_t> owner, used;  // [replicas]; [ranks]: slots taken
  std::vector<int64_t> rows, left,
      room;  // [replicas]; [experts]: rows still at the owner; [ranks]: cap minus load, negative: surplus
  std::vector<int32_t> hot;  // [ranks] the local expert with the most rows left
  int replicas = 0;
};

// Scratch memory of the planners. The first plan sizes it; later plans of the same sizes do not allocate.
struct EchoWorkspace {
  EchoSizes sizes;
  std::vector<int64_t> expert_rows, loads;  // sums of counts: [experts], [ranks]
  int64_t total = 0;
  EchoFill trial, best, other;
  std::vector<int64_t> caps, spill, spare, kept, column, quota, remainder;
  std::vector<int32_t> rank_order, expert_order, replica_order, queue;
};

// Computes a plan. capfill minimizes the number of replicas. With experts / ranks slots, exact limits every rank
// to ceil(rows / ranks) rows; with fewer slots it returns its best plan. greedy and binpack (one slot) reproduce
// other programs. A plan never increases the maximum load, unless it is random.
void plan_echo(const EchoCounts& counts, const EchoOptions& options, EchoWorkspace& workspace, EchoPlan& plan);
EchoPlan plan_echo(const EchoCounts& counts, const EchoOptions& options);

// Returns a lower bound of the maximum load of any plan. With experts / ranks slots it is ceil(rows / ranks).
int64_t echo_lower_bound(const EchoCounts& counts);

}  // namespace metroplex::plan
