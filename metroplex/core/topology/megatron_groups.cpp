#include "topology/megatron_groups.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace metroplex::topology {

namespace {

class GroupList {
 public:
  void add(const std::string& name, RankGroups groups) {
    const auto found =
        std::find_if(named_.begin(), named_.end(), [&](const auto& known) { return known.name == name; });
    if (found == named_.end()) {
      named_.push_back({name, std::move(groups)});
    } else {
      std::move(groups.begin(), groups.end(), std::back_inserter(found->groups));
    }
  }
  void add_with_gloo(const std::string& name, const std::string& gloo_name, const RankGroups& groups, bool gloo) {
    add(name, groups);
    if (gloo) add(gloo_name + "|gloo", groups);
  }
  std::vector<NamedGroups> take() { return std::move(named_); }

 private:
  std::vector<NamedGroups> named_;
};

RankGroups choose_ranks(const RankGroups& groups, const ChooseRanks& choose) {
  RankGroups result;
  result.reserve(groups.size());
  for (const Ranks& group : groups) { result.push_back(choose(group)); }
  return result;
}

// Adds sizes 2, 4, ... below the largest power of two that fits in the group.
void add_hybrid(GroupList& list, const Ranks& group) {
  const int count = static_cast<int>(group.size());
  MPX_CHECK(count % 2 == 0, "topology", "hybrid context parallel needs an even dp*cp, and it is ", count,
            "; choose another number of ranks or turn it off");
  for (int size = 2; size * 2 <= count; size *= 2) {
    list.add("HYBRID_DP_CP_GROUP_" + std::to_string(size), split_group(group, size));
  }
}

void add_data_parallel(GroupList& list, const RankGrid& grid, const MegatronOptions& options, bool gloo) {
  const int instances = grid.num_distributed_optimizer_instances();
  for (const Ranks& group : grid.groups({Axis::dp, Axis::cp})) {
    list.add_with_gloo("DATA_PARALLEL_GROUP_WITH_CP", "DATA_PARALLEL_GROUP_WITH_CP_GLOO", {group}, gloo);
    if (options.hybrid_context_parallel) add_hybrid(list, group);
    if (instances > 1) {
      list.add_with_gloo("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
                         "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO",
                         split_group(group, static_cast<int>(group.size()) / instances), gloo);
    }
  }
  list.add_with_gloo("DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_GLOO", grid.groups(Axis::dp), gloo);
  if (grid.size(Axis::gtp) > 1) {
    list.add("DATA_PARALLEL_GROUP_WITH_GTP_REMAT", grid.groups({Axis::gtp, Axis::dp}));
    list.add("DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT", grid.groups({Axis::gtp, Axis::dp, Axis::cp}));
  }
}

void add_context_parallel(GroupList& list, const RankGrid& grid, const MegatronOptions& options) {
  const RankGroups groups = grid.groups(Axis::cp);
  list.add("CONTEXT_PARALLEL_GROUP", groups);
  if (options.hierarchical_context_parallel_sizes.empty()) return;
  for (const Ranks& group : groups) {
    const auto levels = hierarchical_groups(group, options.hierarchical_context_parallel_sizes);
    for (size_t level = 0; level < levels.size(); ++level) {
      list.add("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L" + std::to_string(level), levels[level]);
    }
  }
}

void add_model_parallel(GroupList& list, const RankGrid& grid, const MegatronOptions& options) {
  const RankGroups pipelines = grid.groups(Axis::pp);
  list.add("MODEL_PARALLEL_GROUP", grid.groups({Axis::tp, Axis::gtp, Axis::pp}));
  list.add("TENSOR_MODEL_PARALLEL_GROUP", grid.groups(Axis::tp));
  list.add("PIPELINE_MODEL_PARALLEL_GROUP", pipelines);
  list.add("EMBEDDING_GROUP", choose_ranks(pipelines, options.embedding));
  list.add("POSITION_EMBEDDING_GROUP", choose_ranks(pipelines, options.position_embedding));
  list.add("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", grid.groups({Axis::tp, Axis::gtp, Axis::dp, Axis::cp}));
  list.add("TENSOR_AND_DATA_PARALLEL_GROUP", grid.groups({Axis::tp, Axis::gtp, Axis::dp}));
  list.add("TENSOR_AND_CONTEXT_PARALLEL_GROUP", grid.groups({Axis::tp, Axis::cp}));
}

void add_expert_data_parallel(GroupList& list, const RankGrid& grid, bool gloo) {
  const int instances = grid.num_distributed_optimizer_instances();
  const int shard = grid.size(Axis::edp) / instances;
  for (const Ranks& group : grid.groups(Axis::edp)) {
    list.add_with_gloo("EXPERT_DATA_PARALLEL_GROUP", "EXPERT_DATA_PARALLEL_GROUP_GLOO", {group}, gloo);
    if (instances == 1) continue;
    const auto levels = hierarchical_groups(group, {shard, instances});
    for (size_t level = 0; level < levels.size(); ++level) {
      const std::string suffix = "_L" + std::to_string(level);
      list.add_with_gloo("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP" + suffix,
                         "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_GLOO" + suffix, levels[level], gloo);
    }
  }
  // Joins the expert model-parallel groups that one optimizer instance spans.
  RankGroups joined;
  int taken = 0;
  for (const Ranks& group : grid.groups({Axis::etp, Axis::ep, Axis::pp})) {
    if (taken++ % shard == 0) joined.emplace_back();
    joined.back().insert(joined.back().end(), group.begin(), group.end());
  }
  list.add("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", joined);
}

void add_experts(GroupList& list, const RankGrid& grid, bool gloo) {
  const RankGroups with_pp = grid.groups({Axis::etp, Axis::ep, Axis::pp});
  list.add("EXPERT_GTP_WEIGHT_REMAT_GROUP", grid.groups({}));
  list.add("EXPERT_MODEL_PARALLEL_GROUP", grid.groups(Axis::ep));
  list.add("EXPERT_TENSOR_PARALLEL_GROUP", grid.groups(Axis::etp));
  list.add("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", grid.groups({Axis::etp, Axis::ep}));
  list.add("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", with_pp);
  list.add("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP", with_pp);
  add_expert_data_parallel(list, grid, gloo);
}

}  // namespace

Ranks embedding_ranks(const Ranks& pp_group) {
  if (pp_group.size() == 1) return pp_group;
  return {pp_group.front(), pp_group.back()};
}

Ranks position_embedding_ranks(const Ranks& pp_group) { return {pp_group.front()}; }

RankGroups split_group(const Ranks& group, int size) {
  MPX_ASSERT(size > 0, "slices of ", size, " members");
  RankGroups result;
  for (size_t begin = 0; begin < group.size(); begin += size) {
    const size_t end = std::min(group.size(), begin + size);
    result.emplace_back(group.begin() + begin, group.begin() + end);
  }
  return result;
}

std::vector<RankGroups> hierarchical_groups(const Ranks& group, const std::vector<int>& sizes) {
  int64_t product = 1;
  std::string text;
  for (int size : sizes) {
    MPX_CHECK(size > 0, "topology", "hierarchical size ", size, " must be at least 1");
    product = std::min<int64_t>(product * size, int64_t{1} << 40);
    text += (text.empty() ? "" : " x ") + std::to_string(size);
  }
  MPX_CHECK(product == static_cast<int64_t>(group.size()), "topology", "hierarchical sizes ", text, " = ", product,
            " do not multiply to the group's ", group.size(), " ranks; choose sizes whose product is ", group.size());
  std::vector<RankGroups> levels;
  for (size_t level = 0; level < sizes.size(); ++level) {
    std::vector<bool> mask(sizes.size(), false);
    mask[level] = true;
    levels.push_back(masked_orthogonal_groups(static_cast<int>(group.size()), sizes, mask));
    for (Ranks& members : levels.back()) {
      for (int& member : members) member = group[member];
    }
  }
  return levels;
}

std::vector<NamedGroups> megatron_groups(const RankGrid& grid, const MegatronOptions& options) {
  MPX_CHECK(grid.size(Axis::gtp) == 1 || grid.num_distributed_optimizer_instances() == 1, "topology",
            "Megatron's list is not known for gtp_remat_size ", grid.size(Axis::gtp), " together with ",
            grid.num_distributed_optimizer_instances(), " num_distributed_optimizer_instances; set one of them to 1");
  const bool gloo = options.create_gloo_process_groups && grid.size(Axis::gtp) == 1;
  GroupList list;
  list.add("GTP_WEIGHT_REMAT_GROUP", grid.groups(Axis::gtp));
  add_data_parallel(list, grid, options, gloo);
  add_context_parallel(list, grid, options);
  add_model_parallel(list, grid, options);
  add_experts(list, grid, gloo);
  return list.take();
}

}  // namespace metroplex::topology
