// Every process group that Megatron-LM creates at startup (initialize_model_parallel in parallel_state.py), with its
// names, members and order of creation. It serves for comparison and lookup by Megatron's names; this project's own
// groups come from RankGrid.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "topology/rank_grid.h"

namespace metroplex::topology {

// All groups with one description, in order of creation.
struct NamedGroups {
  std::string name;  // Megatron's description; "|gloo" is appended for groups on the gloo backend
  RankGroups groups;
};

using ChooseRanks = std::function<Ranks(const Ranks& pp_group)>;
// Returns the first and last stage, which hold a tied embedding; a single stage if there is only one.
Ranks embedding_ranks(const Ranks& pp_group);
// Returns the first stage, which adds the learned positions.
Ranks position_embedding_ranks(const Ranks& pp_group);

struct MegatronOptions {
  std::vector<int> hierarchical_context_parallel_sizes;  // empty: none; else their product is cp
  bool hybrid_context_parallel = false;
  bool create_gloo_process_groups = true;  // ignored with weight shards (gtp > 1)
  ChooseRanks embedding = embedding_ranks;
  ChooseRanks position_embedding = position_embedding_ranks;
};

// Returns the groups in order of first creation. Throws if the hierarchical sizes do not multiply to cp, or for
// hybrid context parallelism with odd dp*cp. Also throws for weight shards (gtp) with several optimizer instances.
std::vector<NamedGroups> megatron_groups(const RankGrid& grid, const MegatronOptions& options = {});

// Divides one group into levels. Level k groups the members whose positions differ only in digit k; digit 0 has
// sizes[0] values and varies fastest. Element [k] is the list of level k. Throws unless the sizes multiply to the
// size of the group.
std::vector<RankGroups> hierarchical_groups(const Ranks& group, const std::vector<int>& sizes);

// Returns consecutive ranges of `size` members; the last may be shorter.
RankGroups split_group(const Ranks& group, int size);

}  // namespace metroplex::topology
