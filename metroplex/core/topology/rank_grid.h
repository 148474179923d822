// Ranks and their coordinates. Two grids cover the same ranks. The dense grid (tp, cp, dp, pp) is for everything
// except routed experts. The expert grid (etp, ep, edp, pp) is for routed experts. tp*cp*dp*pp = etp*ep*edp*pp. dp
// and edp follow from the number of ranks. A group consists of all ranks that differ only in a chosen set of axes
// of one grid. Its members are in the grid's order, and a rank's position in it is its group index.
#pragma once

#include <string>
#include <vector>

#include "config/parallel.h"
#include "topology/axis.h"
#include "topology/ordered_grid.h"

namespace metroplex::topology {

// Position of a rank on both grids; pp is common to both.
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
  // Throws base::Error of module "topology" in these cases: the degrees do not fit `world`; the order string omits an
  // axis; optimizer instances do not divide data parallel; virtual stages without pipeline stages; the order does not
  // end with pp, and the grids would have different pipeline groups. `gtp`: weight shards inside data parallel
  // (Megatron's gtp_remat), not included in dp.
  RankGrid(int world, const config::Parallel& parallel, int gtp = 1);

  int world_size() const { return dense_.num_ranks(); }
  int size(Axis axis) const;
  // Returns the product of the sizes of `axes`, which is the group size of this kind.
  int size(AxisSet axes) const;
  int vpp() const { return vpp_; }
  int num_distributed_optimizer_instances() const { return num_instances_; }
  // Levels of a cp group (see hierarchical_groups in megatron_groups.h); empty: no levels.
  const std::vector<int>& context_levels() const { return context_levels_; }
  const OrderedGrid& dense() const { return dense_; }
  const OrderedGrid& expert() const { return expert_; }

  Coordinates coordinates(int rank) const;
  // Uses the dense coordinates tp, gtp, cp, dp, pp and ignores the expert ones.
  int rank(const Coordinates& coordinates) const;

  // Returns all groups of the kind, in Megatron's order. The axes must belong to one grid: {tp, ep} throws, {etp, ep}
  // and {ep, pp} do not. pp alone and no axes (single-rank groups) belong to both.
  RankGroups groups(AxisSet axes) const;
  Ranks group_ranks(int rank, AxisSet axes) const;
  int index_in_group(int rank, AxisSet axes) const;

  // Returns "tp 1 pp 0 dp 3"; cp, gtp, and ep (with etp, edp) are included if > 1.
  std::string format_coordinates(int rank) const;

 private:
  const OrderedGrid& select_grid(AxisSet axes) const;
  void check_rank(int rank) const;

  OrderedGrid dense_;
  OrderedGrid expert_;
  int vpp_;
  int num_instances_;
  std::vector<int> context_levels_;
};

}  // namespace metroplex::topology
