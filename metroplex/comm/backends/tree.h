// A tree over ranks 0 .. size-1, for what all must hear of or agree on: nobody is joined to more than a few. A rank's
// parent is the rank with the lowest non-zero digit (to the base kTreeBase) set to zero, so the ranks of a node of
// eight meet in its first one, and the ranks below any rank follow it without a gap. 16,384 ranks: five levels, and
// rank 0 has 31 children.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/backends/backend.h"

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

// Makes the backend of one level: `indices` are members of the large group, the caller among them.
using LevelFactory =
    std::function<std::shared_ptr<GroupBackend>(const std::string& level, const std::vector<int>& indices)>;

// A group of any size, made of one small group for each level of the tree. For short texts and numbers in host
// memory: what members bring is gathered along the tree in member 0, worked on there in group order, and handed down
// again. No all-to-all and no p2p.
std::shared_ptr<GroupBackend> make_tree_backend(int index, int size, const LevelFactory& make_level);

}  // namespace metroplex::comm
