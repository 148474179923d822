// Placement of ranks on machines: rank r is on node r / gpus_per_node. Reports which groups stay within a node, where
// bandwidth is high, and which cross nodes.
#pragma once

#include <vector>

#include "topology/axis.h"
#include "topology/rank_grid.h"

namespace metroplex::topology {

// The kinds of groups used in training: the axes that vary within a group and its purpose. They are ordered from most
// to least communication, which is also their priority for staying within a node.

struct GroupKind {
  AxisSet axes;
  const char* purpose;
};

inline constexpr GroupKind kGroupKinds[] = {
    {{Axis::tp}, "splits every matrix; talks inside every layer"},
    {{Axis::etp}, "splits each expert's matrices; talks inside every expert layer"},
    {{Axis::cp}, "splits the sequence; exchanges keys and values in attention"},
    {{Axis::tp, Axis::cp}, "all ranks that hold parts of the same sequences"},
    {{Axis::ep}, "splits the experts; tokens travel to them and back"},
    {{Axis::etp, Axis::ep}, "all ranks that tokens of an expert layer may visit"},
    {{Axis::edp}, "copies of the same experts; averages their gradients"},
    {{Axis::dp}, "copies of the same weights on other data"},
    {{Axis::dp, Axis::cp}, "averages the dense gradients, shards the optimizer"},
    {{Axis::tp, Axis::dp}, "sums routing statistics over data"},
    {{Axis::tp, Axis::dp, Axis::cp}, "one pipeline stage; shares the amax of fp8"},
    {{Axis::pp}, "the stages of one pipeline; hands activations on"},
    {{Axis::tp, Axis::pp}, "one copy of the dense model; the gradient norm is summed here"},
    {{Axis::etp, Axis::ep, Axis::pp}, "one copy of the experts; their gradient norm is summed here"},
};

struct Cluster {
  int world;
  int gpus_per_node;

  // Throws unless both are positive. The last node may be partially filled.
  Cluster(int world, int gpus_per_node);
  int node(int rank) const { return rank / gpus_per_node; }
  int local_rank(int rank) const { return rank % gpus_per_node; }
  int num_nodes() const { return (world + gpus_per_node - 1) / gpus_per_node; }
};

// Node usage of the groups of one kind.
struct Reach {
  int num_groups = 0;
  int num_crossing = 0;  // groups with members on more than one node
  int group_size = 0;    // of the largest group
  int max_nodes = 0;     // maximum over groups

  bool inter_node() const { return num_crossing > 0; }
};

Reach reach(const Cluster& cluster, const RankGroups& groups);

struct GroupReach {
  GroupKind kind;
  Reach reach;
};

// Returns every kind in the table whose groups have more than one member on this grid. Omits kinds with the same
// groups as an earlier kind of fewer axes.
std::vector<GroupReach> list_group_reach(const Cluster& cluster, const RankGrid& grid);

}  // namespace metroplex::topology
