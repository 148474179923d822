// Ranks and their coordinates. The world is cut twice: the dense grid (tp, cp, dp, pp) for everything but routed
// experts, and the expert grid (etp, ep, edp, pp) for them, over the same ranks: tp*cp*dp*pp = etp*ep*edp*pp. dp and
// edp follow from the number of ranks. A group is all ranks that differ only in a chosen set of axes of one grid; its
// members are listed in the grid's order, and the place in that list is the rank's index in the group.
#pragma once

#include <string>
#include <vector>

#include "config/parallel.h"
#include "topology/axis.h"
#include "topology/ordered_grid.h"

namespace metroplex::topology {

// Where a rank is on both grids; pp is the same on both.
struct Coordinates {
  int tp = 0;
  int gtp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  int etp = 0;
  int ep = 0;
  int edp = 0;

  int at(Axis axis) const;
  bool operator==(const Coordinates&) const = default;
};

class RankGrid {
 public:
  // Throws base::Error of room "topology" when the degrees do not fit `world` ranks, when the order string leaves an
  // axis out, when virtual stages are asked for without pipeline stages, when the order does not end with pp and the
  // two grids would disagree on pipeline groups, or when optimizer instances do not divide data parallel.
  // `gtp`: weight shards inside data parallel (Megatron's gtp_remat), counted apart from dp.
  RankGrid(int world, const config::Parallel& parallel, int gtp = 1);

  int world_size() const { return dense_.num_ranks(); }
  int size(Axis axis) const;
  // Product of the sizes of `axes`: how many ranks a group of this kind has.
  int size(AxisSet axes) const;
  int vpp() const { return vpp_; }
  int num_distributed_optimizer_instances() const { return num_instances_; }
  // The levels that a cp group is cut into (hierarchical_groups of megatron_groups.h); none: it is not.
  const std::vector<int>& context_levels() const { return context_levels_; }
  // Both orders in full.
  const OrderedGrid& dense() const { return dense_; }
  const OrderedGrid& expert() const { return expert_; }

  Coordinates coordinates(int rank) const;
  // From the dense coordinates tp, gtp, cp, dp, pp; the expert ones are ignored.
  int rank(const Coordinates& coordinates) const;

  // All groups of the kind, in Megatron's order. The axes must belong to one grid: {tp, ep} throws, {etp, ep} and
  // {ep, pp} do not. pp alone and no axes at all (every rank for itself) are of both.
  RankGroups groups(AxisSet axes) const;
  // The members of the group of `rank`, in group order.
  Ranks group_of(int rank, AxisSet axes) const;
  // The place of `rank` in group_of(rank, axes).
  int index_in_group(int rank, AxisSet axes) const;

  // "tp 1 pp 0 dp 3"; cp, gtp, and ep (with etp, edp) appear where they are above 1.
  std::string describe(int rank) const;

 private:
  const OrderedGrid& grid_of(AxisSet axes) const;
  void check_rank(int rank) const;

  OrderedGrid dense_;
  OrderedGrid expert_;
  int vpp_;
  int num_instances_;
  std::vector<int> context_levels_;
};

}  // namespace metroplex::topology
