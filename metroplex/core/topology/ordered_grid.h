// One grid of ranks: axis sizes and the order in which they vary, first axis fastest. Ranks that differ only in some
// chosen axes form a group. Groups of any set of axes have one construction (masked orthogonal): with stride(axis) =
// product of the sizes before it, rank = <member, strides of the chosen axes> + <group, strides of the others>.
#pragma once

#include <string>
#include <vector>

#include "topology/axis.h"

namespace metroplex::topology {

using Ranks = std::vector<int>;
using RankGroups = std::vector<Ranks>;

// Sizes by the names of an order string. In the expert grid tp means etp and dp means edp.
struct GridSizes {
  int tp = 1;
  int cp = 1;
  int ep = 1;
  int dp = 1;
  int pp = 1;
  int gtp = 1;                           // "gtp_remat" in an order string
  std::string order = "tp-cp-ep-dp-pp";  // '-' separated, any letter case; axes of size 1 may be omitted
  int rank_offset = 0;                   // added to every rank
};

// Returns the groups of a dense world with these sizes (first fastest); mask[k] is true if axis k varies within a
// group. Groups are ordered by the unmasked coordinates, members by the masked ones. Throws if the product of the
// sizes is not `world`.
RankGroups masked_orthogonal_groups(int world, const std::vector<int>& sizes, const std::vector<bool>& mask);

class OrderedGrid {
 public:
  // Throws if ep and cp are both > 1, because they belong to different grids. Also throws if the order repeats an
  // axis, has an unknown one, or omits an axis of size > 1.
  explicit OrderedGrid(GridSizes sizes);

  // Returns the full order, with omitted axes appended: "tp-dp-pp-ep-cp-gtp_remat".
  const std::string& order() const { return sizes_.order; }
  // The axes of this grid are tp, cp, ep, dp, pp and gtp; others have size 1.
  int size(Axis axis) const { return size_[static_cast<int>(axis)]; }
  int num_ranks() const { return num_ranks_; }
  int rank_offset() const { return sizes_.rank_offset; }
  int coordinate(int rank, Axis axis) const;
  // Returns the rank difference of one step along `axis`.
  int stride(Axis axis) const { return stride_[static_cast<int>(axis)]; }

  RankGroups groups(AxisSet axes) const;
  // Returns the group of groups(axes) that contains `rank`, without building the others.
  Ranks group_ranks(int rank, AxisSet axes) const;
  // Returns the position of `rank` in that group.
  int index_in_group(int rank, AxisSet axes) const;

 private:
  // Returns every combination of steps along `axes`, or along the other axes if `inside` is false.
  Ranks offsets(AxisSet axes, bool inside) const;

  GridSizes sizes_;
  std::vector<Axis> axes_;  // in the order of the order string
  int size_[kNumAxes] = {1, 1, 1, 1, 1, 1, 1, 1};
  int stride_[kNumAxes] = {};
  int num_ranks_ = 1;
};

}  // namespace metroplex::topology
