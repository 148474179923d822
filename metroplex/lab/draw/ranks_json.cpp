#include "draw/ranks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace metroplex::draw {

static topology::RankGroups groups_with(topology::RankGroups groups, const std::optional<int>& rank) {
  if (rank) {
    std::erase_if(groups,
                  [&](const auto& group) { return std::find(group.begin(), group.end(), *rank) == group.end(); });
  }
  return groups;
}

std::string to_json(const topology::RankGrid& grid, int gpus_per_node, const topology::MegatronOptions& options,
                    const JsonFilter& filter) {
  using Json = nlohmann::ordered_json;
  Json result = {{"world_size", grid.world_size()}, {"order", grid.dense().order()}, {"sizes", Json::object()}};
  for (const topology::AxisInfo& axis : topology::kAxes) result["sizes"][axis.name] = grid.size(axis.axis);
  result["virtual_pipeline_model_parallel_size"] = grid.vpp();
  if (gpus_per_node > 0) result["gpus_per_node"] = gpus_per_node;
  result["ranks"] = Json::array();
  const int first = filter.rank.value_or(0), end = filter.rank ? first + 1 : grid.world_size();
  for (int rank = first; rank < end; ++rank) {
    Json entry = {{"rank", rank}};
    const topology::Coordinates at = grid.coordinates(rank);
    for (const topology::AxisInfo& axis : topology::kAxes) entry[axis.name] = at.at(axis.axis);
    if (gpus_per_node > 0) {
      entry["node"] = rank / gpus_per_node;
      entry["local_rank"] = rank % gpus_per_node;
    }
    result["ranks"].push_back(std::move(entry));
  }
  result["groups"] = Json::object();
  for (const topology::GroupKind& kind : topology::kGroupKinds)
    result["groups"][to_string(kind.axes)] = groups_with(grid.groups(kind.axes), filter.rank);
  if (filter.group)
    result["group"] = {{"name", filter.group->name}, {"groups", groups_with(filter.group->groups, filter.rank)}};
  if (gpus_per_node > 0) {
    const topology::Cluster cluster(grid.world_size(), gpus_per_node);
    result["reach"] = Json::object();
    for (const auto& [kind, far] : list_group_reach(cluster, grid)) {
      result["reach"][to_string(kind.axes)] = {{"num_groups", far.num_groups},
                                               {"num_crossing", far.num_crossing},
                                               {"group_size", far.group_size},
                                               {"max_nodes", far.max_nodes}};
    }
  }
  result["megatron_groups"] = Json::object();
  for (topology::NamedGroups& named : megatron_groups(grid, options)) {
    result["megatron_groups"][named.name] = groups_with(std::move(named.groups), filter.rank);
  }
  return result.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace metroplex::draw
