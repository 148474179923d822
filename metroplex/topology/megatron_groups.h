// Every process group that Megatron-LM makes when it starts (initialize_model_parallel in parallel_state.py), with
// its names, members and order of creation. What this project communicates over is asked of RankGrid; this list is
// for comparing and for people who know Megatron's names.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "topology/rank_grid.h"

namespace metroplex::topology {

// All groups that share a description, in the order in which they were made.
struct NamedGroups {
  std::string name;  // as Megatron describes it; "|gloo" is appended for groups on the gloo backend
  RankGroups groups;
};

// Chooses ranks of one pipeline group.
using ChooseRanks = std::function<Ranks(const Ranks& pp_group)>;
// First and last stage, where a tied embedding lives; the only one when there is one.
Ranks embedding_ranks(const Ranks& pp_group);
// The first stage, which adds the learned positions.
Ranks position_embedding_ranks(const Ranks& pp_group);

struct MegatronOptions {
  std::vector<int> hierarchical_context_parallel_sizes;  // empty: none; else their product is cp
  bool hybrid_context_parallel = false;
  bool create_gloo_process_groups = true;  // never made beside weight shards (gtp above 1)
  ChooseRanks embedding = embedding_ranks;
  ChooseRanks position_embedding = position_embedding_ranks;
};

// In order of first creation. Throws when the hierarchical sizes do not multiply to cp, when hybrid context
// parallel meets an odd dp*cp, or for weight shards (gtp) together with several optimizer instances.
std::vector<NamedGroups> megatron_groups(const RankGrid& grid, const MegatronOptions& options = {});

// One group cut into levels: level k joins the members whose positions differ only in digit k, where digit 0 has
// sizes[0] values and varies fastest. Element [k] is the list of level k. Throws unless the sizes multiply to the
// size of the group.
std::vector<RankGroups> hierarchical_groups(const Ranks& group, const std::vector<int>& sizes);

// Consecutive slices of `size` members; the last may be shorter.
RankGroups slices(const Ranks& group, int size);

}  // namespace metroplex::topology
