#include "comm/rank_tree.h"

namespace metroplex::comm {

std::vector<TreeLevel> tree_levels(int rank, int size) {
  std::vector<TreeLevel> levels;
  for (int64_t span = 1; span < size; span *= kTreeBase) {
    const int64_t leader = rank - rank % (span * kTreeBase);
    TreeLevel level{{}, span};
    for (int64_t member = leader; member < leader + span * kTreeBase && member < size; member += span)
      level.members.push_back(static_cast<int>(member));
    levels.push_back(std::move(level));
    if (leader != rank) break;
  }
  return levels;
}

int tree_parent(int rank) {
  if (rank == 0) return -1;
  int64_t span = 1;
  while (rank % (span * kTreeBase) == 0) span *= kTreeBase;
  return static_cast<int>(rank - rank % (span * kTreeBase));
}

std::vector<int> tree_children(int rank, int size) {
  std::vector<int> children;
  for (const TreeLevel& level : tree_levels(rank, size)) {
    if (level.members.front() != rank) continue;
    children.insert(children.end(), level.members.begin() + 1, level.members.end());
  }
  return children;
}

}  // namespace metroplex::comm
