// One grid of ranks: sizes of axes and the order in which they vary, first axis fastest. Ranks that differ only in
// some chosen axes form a group; the groups of any set of axes come out of one construction (masked orthogonal):
// with stride(axis) = product of the sizes before it, rank = <member, strides of the chosen axes> + <group, strides
// of the others>.
#pragma once

#include <string>
#include <vector>

#include "topology/axis.h"

namespace metroplex::topology {

using Ranks = std::vector<int>;
using RankGroups = std::vector<Ranks>;

// Sizes by the names that an order string uses. In the grid of the experts tp stands for etp and dp for edp.
struct GridSizes {
  int tp = 1;
  int cp = 1;
  int ep = 1;
  int dp = 1;
  int pp = 1;
  int gtp = 1;                           // "gtp_remat" in an order string
  std::string order = "tp-cp-ep-dp-pp";  // '-' separated, any letter case; axes of size 1 may be left out
  int rank_offset = 0;                   // added to every rank
};

// Groups of a dense world with these sizes (first fastest); mask[k] says that axis k varies inside a group. Groups
// are in increasing index of the unmasked coordinates, members in increasing index of the masked ones.
// Throws when the product of the sizes is not world.
RankGroups masked_orthogonal_groups(int world, const std::vector<int>& sizes, const std::vector<bool>& mask);

class OrderedGrid {
 public:
  // Throws when ep and cp are both above 1 (they belong to different grids), when the order names an axis twice or
  // an unknown one, or leaves out an axis of size above 1.
  explicit OrderedGrid(GridSizes sizes);

  // The order in full, with the axes it left out appended: "tp-dp-pp-ep-cp-gtp_remat".
  const std::string& order() const { return sizes_.order; }
  // Axis names of this grid are tp, cp, ep, dp, pp and gtp; others count as size 1.
  int size(Axis axis) const { return size_[static_cast<int>(axis)]; }
  int num_ranks() const { return num_ranks_; }
  int rank_offset() const { return sizes_.rank_offset; }
  // Position of `rank` along `axis`.
  int coordinate(int rank, Axis axis) const;
  // What one step along `axis` adds to the rank.
  int stride(Axis axis) const { return stride_[static_cast<int>(axis)]; }

  RankGroups groups(AxisSet axes) const;
  // The one group of groups(axes) that holds `rank`, without making the others.
  Ranks group_of(int rank, AxisSet axes) const;

 private:
  // Every combination of steps along the axes that are in `axes` (or, with inside false, along the others).
  Ranks offsets(AxisSet axes, bool inside) const;

  GridSizes sizes_;
  std::vector<Axis> axes_;  // by the order string
  int size_[kNumAxes] = {1, 1, 1, 1, 1, 1, 1, 1};
  int stride_[kNumAxes] = {};
  int num_ranks_ = 1;
};

}  // namespace metroplex::topology
