// A tree over ranks 0 .. size-1 for broadcasts and agreements, in which every rank has few connections. The parent of
// a rank has the lowest non-zero digit (base kTreeBase) set to zero. The eight ranks of a node thus meet in their
// first rank, and the subtree of a rank is a contiguous range. For 16,384 ranks the tree has five levels and rank 0
// has 31 children.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/backends/backend.h"

namespace metroplex::comm {

inline constexpr int kTreeBase = 8;

// Returns -1 for rank 0.
int tree_parent(int rank);
std::vector<int> tree_children(int rank, int size);

// One level of the tree as seen from `rank`. Level l joins the ranks that differ only in digit l and whose lower
// digits are zero. `members` is ascending and its first rank leads. Each member represents `stride` ranks, starting
// with itself.
struct TreeLevel {
  std::vector<int> members;
  int64_t stride = 1;
};
// Returns the levels of `rank`, lowest first. It leads all except the last one; rank 0 leads all.
std::vector<TreeLevel> tree_levels(int rank, int size);

// Creates the backend of one level. `indices` are members of the large group and include the caller.
using LevelFactory =
    std::function<std::shared_ptr<GroupBackend>(const std::string& level, const std::vector<int>& indices)>;

// A group of any size, built from one small group per tree level. Use it for short texts and numbers in host memory.
// Data is gathered along the tree to member 0, reduced there in group order, and broadcast back. No all-to-all and no
// p2p.
std::shared_ptr<GroupBackend> make_tree_backend(int index, int size, const LevelFactory& make_level);

}  // namespace metroplex::comm
