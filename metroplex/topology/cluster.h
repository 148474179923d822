// Ranks on machines: rank r sits on node r / gpus_per_node. Says which groups stay inside a node, where bandwidth is
// high, and which cross nodes.
#pragma once

#include <vector>

#include "topology/group_list.h"
#include "topology/rank_grid.h"

namespace metroplex::topology {

struct Cluster {
  int world;
  int gpus_per_node;

  // Throws unless both are positive. The last node may be partly filled.
  Cluster(int world, int gpus_per_node);
  int node(int rank) const { return rank / gpus_per_node; }
  int local_rank(int rank) const { return rank % gpus_per_node; }
  int num_nodes() const { return (world + gpus_per_node - 1) / gpus_per_node; }
};

// How far the groups of one kind reach.
struct Reach {
  int num_groups = 0;
  int num_crossing = 0;  // groups with members on more than one node
  int group_size = 0;    // of the largest group
  int max_nodes = 0;     // nodes that one group touches at most

  bool inter_node() const { return num_crossing > 0; }
};

Reach reach(const Cluster& cluster, const RankGroups& groups);

struct GroupReach {
  GroupKind kind;
  Reach reach;
};

// Every kind of the table whose groups have more than one member on this grid; kinds with the same groups as
// an earlier one of fewer axes are left out.
std::vector<GroupReach> reach_of_groups(const Cluster& cluster, const RankGrid& grid);

}  // namespace metroplex::topology
