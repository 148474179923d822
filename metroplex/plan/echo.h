// Clones of hot experts. Every rank is the home of `experts / ranks` experts and has `slots` places in which clones
// of experts of other ranks compute. Before the rows of a layer are sent, each rank makes the same plan out of the
// counts of all: which expert is cloned into which slot, and how many rows of each source rank go to the clone in
// place of the home. Integers and total orders only, so that the plans of all ranks are equal without a further
// exchange.
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
  constexpr int clones() const { return ranks * slots; }
  constexpr int rank_of_clone(int clone) const { return clone / slots; }
  // Columns that rows are sent to: of each rank its home experts and then its slots.
  constexpr int columns() const { return experts + clones(); }
  constexpr int column_of_expert(int expert) const {
    return home(expert) * (home_experts() + slots) + expert % home_experts();
  }
  constexpr int column_of_clone(int clone) const {
    return rank_of_clone(clone) * (home_experts() + slots) + home_experts() + clone % slots;
  }
  bool operator==(const EchoSizes&) const = default;
};

// A view.
struct EchoCounts {
  const int64_t* rows = nullptr;  // [ranks][experts]: of each source rank, to each expert
  EchoSizes sizes;
  int64_t at(int rank, int expert) const { return rows[int64_t{rank} * sizes.experts + expert]; }
};

using config::EchoSplit;

struct EchoOptions {
  config::EchoPlanner planner = config::EchoPlanner::capfill;
  // local_first: the replica's own rank first, the rest in proportion by largest remainder. breadth_then_depth: in
  // proportion, rounded down, then the lowest ranks.
  EchoSplit split = EchoSplit::local_first;
  // capfill: among plans whose largest load is within so many 1/10000 of the mean it takes the one of fewest clones.
  int64_t eps_bp = 100;
  // greedy: a home takes its rows back as long as its load stays within 1 + reclaim times the mean. 0: never.
  double reclaim = 0;
  // capfill, exact: of homes that would do alike, one among as many neighbours of the clone's rank. 0: no preference.
  int ranks_per_node = 0;
  // Instead of a planner, for tests: owners and rows are drawn, whatever the load, out of the counts and `seed`. So
  // whoever plans the same counts again gets the same plan.
  bool random = false;
  uint64_t seed = 0;
  // Rounds breadth_then_depth and reclaim in float32, to replay what another program recorded.
  bool float32 = false;
};

struct EchoPlan {
  EchoSizes sizes;
  std::vector<int32_t> owner;        // [clones] the expert that a slot is a clone of; -1: none
  std::vector<int64_t> rows;         // [clones] that it takes; 0 exactly where it has no owner
  std::vector<int64_t> source_rows;  // [ranks][clones]: of each source rank
  std::vector<int64_t> final_loads;  // [ranks]

  int64_t from(int rank, int clone) const { return source_rows[static_cast<size_t>(rank * sizes.clones() + clone)]; }
  int64_t max_load() const;
  int num_clones() const;  // with an owner
  bool operator==(const EchoPlan&) const = default;
};

// A fill that is tried: slots are taken in their order.
struct EchoFill {
  std::vector<int32_t> owner, used;       // [clones], [ranks] slots taken
  std::vector<int64_t> rows, left, room;  // [clones]; [experts] still at home; [ranks] cap less load: < 0 is surplus
  std::vector<int32_t> hot;               // [ranks] the home expert with most rows left
  int clones = 0;
};

// What plans are made in. It is sized by the first plan; later ones of the same sizes allocate nothing.
struct EchoWorkspace {
  EchoSizes sizes;
  std::vector<int64_t> expert_rows, loads;  // sums of the counts: [experts], [ranks]
  int64_t total = 0;
  EchoFill trial, best, other;
  std::vector<int64_t> caps, spill, spare, kept, column, quota, remainder;
  std::vector<int32_t> rank_order, expert_order, clone_order, queue;
};

// capfill needs few clones; exact reaches ceil(rows / ranks) on every rank with experts / ranks slots, and with fewer
// the best that it finds; greedy and binpack (one slot) are what other programs do. A plan never makes the largest
// load larger, unless it is random.
void plan_echo(const EchoCounts& counts, const EchoOptions& options, EchoWorkspace& workspace, EchoPlan& plan);
EchoPlan plan_echo(const EchoCounts& counts, const EchoOptions& options);

// No plan has a smaller largest load. With experts / ranks slots it is ceil(rows / ranks).
int64_t echo_lower_bound(const EchoCounts& counts);

}  // namespace metroplex::plan
