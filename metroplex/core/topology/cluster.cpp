#include "topology/cluster.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::topology {

Cluster::Cluster(int world_size, int gpus) : world(world_size), gpus_per_node(gpus) {
  MPX_CHECK(world > 0, "topology", "the world has ", world, " ranks; it needs at least 1");
  MPX_CHECK(gpus_per_node > 0, "topology", "gpus_per_node is ", gpus_per_node, "; a node has at least 1");
}

Reach reach(const Cluster& cluster, const RankGroups& groups) {
  Reach result;
  std::vector<int> nodes;
  for (const Ranks& group : groups) {
    nodes.clear();
    for (int rank : group) {
      const int node = cluster.node(rank);
      if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
    }
    std::sort(nodes.begin(), nodes.end());
    const int touched = static_cast<int>(std::unique(nodes.begin(), nodes.end()) - nodes.begin());
    ++result.num_groups;
    if (touched > 1) ++result.num_crossing;
    result.max_nodes = std::max(result.max_nodes, touched);
    result.group_size = std::max(result.group_size, static_cast<int>(group.size()));
  }
  return result;
}

std::vector<GroupReach> list_group_reach(const Cluster& cluster, const RankGrid& grid) {
  std::vector<GroupReach> result;
  std::vector<AxisSet> seen;
  for (const GroupKind& kind : kGroupKinds) {
    AxisSet varying;  // axes of size 1 add no members
    for (const AxisInfo& axis : kAxes) {
      if (kind.axes.contains(axis.axis) && grid.size(axis.axis) > 1) varying.insert(axis.axis);
    }
    if (varying.empty()) continue;
    const bool shorter_exists = !(varying == kind.axes) && std::find(seen.begin(), seen.end(), varying) != seen.end();
    if (shorter_exists) continue;
    seen.push_back(varying);
    result.push_back({kind, reach(cluster, grid.groups(kind.axes))});
  }
  return result;
}

}  // namespace metroplex::topology
