#include <nlohmann/json.hpp>

#include "topology/draw.h"

namespace metroplex::topology {

std::string to_json(const RankGrid& grid, int gpus_per_node, const MegatronOptions& options) {
  using Json = nlohmann::ordered_json;
  Json result = {{"world_size", grid.world_size()}, {"order", grid.dense().order()}, {"sizes", Json::object()}};
  for (const AxisInfo& axis : kAxes) result["sizes"][axis.name] = grid.size(axis.axis);
  result["virtual_pipeline_model_parallel_size"] = grid.vpp();
  if (gpus_per_node > 0) result["gpus_per_node"] = gpus_per_node;
  result["ranks"] = Json::array();
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    Json entry = {{"rank", rank}};
    const Coordinates at = grid.coordinates(rank);
    for (const AxisInfo& axis : kAxes) entry[axis.name] = at.at(axis.axis);
    if (gpus_per_node > 0) {
      entry["node"] = rank / gpus_per_node;
      entry["local_rank"] = rank % gpus_per_node;
    }
    result["ranks"].push_back(std::move(entry));
  }
  result["groups"] = Json::object();
  for (const GroupKind& kind : kGroupKinds) result["groups"][to_string(kind.axes)] = grid.groups(kind.axes);
  if (gpus_per_node > 0) {
    const Cluster cluster(grid.world_size(), gpus_per_node);
    result["reach"] = Json::object();
    for (const auto& [kind, far] : reach_of_groups(cluster, grid)) {
      result["reach"][to_string(kind.axes)] = {{"num_groups", far.num_groups},
                                               {"num_crossing", far.num_crossing},
                                               {"group_size", far.group_size},
                                               {"max_nodes", far.max_nodes}};
    }
  }
  result["megatron_groups"] = Json::object();
  for (NamedGroups& named : megatron_groups(grid, options)) {
    result["megatron_groups"][named.name] = std::move(named.groups);
  }
  return result.dump() + "\n";
}

}  // namespace metroplex::topology
