// A tree over ranks 0 .. size-1, for what all must hear of or agree on: nobody is joined to more than a few. A rank's
// parent is the rank with the lowest non-zero digit (to the base kTreeBase) set to zero, so the ranks of a node of
// eight meet in its first one, and the ranks below any rank follow it without a gap. 16,384 ranks: five levels, and
// rank 0 has 31 children.
#pragma once

#include <cstdint>
#include <vector>

namespace metroplex::comm {

inline constexpr int kTreeBase = 8;

// -1 for rank 0.
int tree_parent(int rank);
std::vector<int> tree_children(int rank, int size);

// One level of the tree as seen from `rank`: on level l meet the ranks that differ in digit l only and whose lower
// digits are zero. `members` in ascending order, the first one leads; each stands for `span` ranks from its own on.
struct TreeLevel {
  std::vector<int> members;
  int64_t span = 1;
};
// Those that `rank` takes part in, from the lowest: it leads all but the last of them, rank 0 leads every one.
std::vector<TreeLevel> tree_levels(int rank, int size);

}  // namespace metroplex::comm
