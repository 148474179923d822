// EPLB's algorithm: packs expert groups onto nodes, creates replicas within a node, and packs replicas onto its
// ranks.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "echo_model/rivals.h"

namespace metroplex::bench {
namespace {

// The pack of each item and its position there. Items in descending weight go to the lightest pack that is not full.
struct Packed {
  std::vector<int> pack, place;
};

Packed pack(const std::vector<float>& weights, int packs) {
  const size_t of_pack = weights.size() / static_cast<size_t>(packs);
  Packed packed{std::vector<int>(weights.size()), std::vector<int>(weights.size(), 0)};
  std::vector<int> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  if (of_pack == 1) {
    packed.pack = order;
    return packed;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)]; });
  std::vector<float> load(static_cast<size_t>(packs), 0);
  std::vector<size_t> items(static_cast<size_t>(packs), 0);
  for (const int item : order) {
    size_t lightest = load.size();
    for (size_t i = 0; i < load.size(); ++i) {
      if (items[i] < of_pack && (lightest == load.size() || load[i] < load[lightest])) lightest = i;
    }
    packed.pack[static_cast<size_t>(item)] = static_cast<int>(lightest);
    packed.place[static_cast<size_t>(item)] = static_cast<int>(items[lightest]++);
    load[lightest] += weights[static_cast<size_t>(item)];
  }
  return packed;
}

// Returns the experts of replicas: each expert once, then repeatedly the one with most rows per replica. `counts`:
// replicas per expert.
std::vector<int> replicate(const std::vector<float>& weights, int replicas, std::vector<int>& counts) {
  std::vector<int> experts(weights.size());
  std::iota(experts.begin(), experts.end(), 0);
  counts.assign(weights.size(), 1);
  while (static_cast<int>(experts.size()) < replicas) {
    size_t most = 0;
    for (size_t i = 1; i < weights.size(); ++i) {
      if (weights[i] / static_cast<float>(counts[i]) > weights[most] / static_cast<float>(counts[most])) most = i;
    }
    experts.push_back(static_cast<int>(most));
    ++counts[most];
  }
  return experts;
}

}  // namespace

std::vector<int32_t> eplb_replicas(std::span<const float> weights, const EplbSizes& given) {
  EplbSizes sizes = given;
  if (sizes.groups % sizes.nodes != 0) sizes.groups = sizes.nodes = 1;
  const int experts = static_cast<int>(weights.size()), of_group = experts / sizes.groups;
  MPX_ASSERT(experts % sizes.groups == 0 && sizes.ranks % sizes.nodes == 0 && sizes.replicas % sizes.ranks == 0 &&
                 sizes.replicas >= experts,
             experts, " experts in ", sizes.groups, " groups, ", sizes.replicas, " replicas on ", sizes.ranks,
             " ranks of ", sizes.nodes, " nodes");
  std::vector<float> of_groups(static_cast<size_t>(sizes.groups), 0);
  for (int i = 0; i < experts; ++i) of_groups[static_cast<size_t>(i / of_group)] += weights[static_cast<size_t>(i)];
  const Packed groups = pack(of_groups, sizes.nodes);
  const int of_node = experts / sizes.nodes, ranks_of_node = sizes.ranks / sizes.nodes;
  const int replicas_of_node = sizes.replicas / sizes.nodes, of_rank = sizes.replicas / sizes.ranks;
  std::vector<int> ordered(weights.size());  // experts by node
  for (int i = 0; i < experts; ++i) {
    const auto group = static_cast<size_t>(i / of_group);
    const int at = groups.pack[group] * sizes.groups / sizes.nodes + groups.place[group];
    ordered[static_cast<size_t>(at * of_group + i % of_group)] = i;
  }
  std::vector<int32_t> result(static_cast<size_t>(sizes.replicas));
  for (int node = 0; node < sizes.nodes; ++node) {
    const auto expert = [&](int i) { return ordered[static_cast<size_t>(node * of_node + i)]; };
    std::vector<float> rows, shares;
    for (int i = 0; i < of_node; ++i) rows.push_back(weights[static_cast<size_t>(expert(i))]);
    std::vector<int> counts;
    const std::vector<int> copies = replicate(rows, replicas_of_node, counts);
    for (const int i : copies)
      shares.push_back(rows[static_cast<size_t>(i)] / static_cast<float>(counts[static_cast<size_t>(i)]));
    const Packed packed = pack(shares, ranks_of_node);
    for (size_t i = 0; i < copies.size(); ++i) {
      const int at = node * replicas_of_node + packed.pack[i] * of_rank + packed.place[i];
      result[static_cast<size_t>(at)] = expert(copies[i]);
    }
  }
  return result;
}

EchoPlacement eplb_placement(const plan::EchoCounts& counts, std::span<const int32_t> replicas) {
  const plan::EchoSizes sizes = counts.sizes;
  const int of_rank = static_cast<int>(replicas.size()) / sizes.ranks;
  EchoPlacement placement(sizes.ranks);
  std::vector<std::vector<int>> ranks_of(static_cast<size_t>(sizes.experts));
  for (size_t i = 0; i < replicas.size(); ++i) {
    const int rank = static_cast<int>(i) / of_rank;
    if (replicas[i] < 0) continue;
    std::vector<int>& ranks = ranks_of[static_cast<size_t>(replicas[i])];
    if (!ranks.empty() && ranks.back() != rank) placement.persistent.push_back({replicas[i], ranks.front(), rank});
    ranks.push_back(rank);
  }
  for (int expert = 0; expert < sizes.experts; ++expert) {
    const std::vector<int>& ranks = ranks_of[static_cast<size_t>(expert)];
    MPX_ASSERT(!ranks.empty(), "expert ", expert, " is on no rank");
    const auto holders = static_cast<int64_t>(ranks.size());
    for (int source = 0; source < sizes.ranks; ++source) {
      for (int64_t i = 0; i < holders; ++i) {
        const int64_t rows = counts.at(source, expert);
        // Remainders start at another replica for each source.
        const int rank = ranks[static_cast<size_t>((source + i) % holders)];
        const int64_t share = rows / holders + (i < rows % holders ? 1 : 0);
        placement.at(source, rank) += share;
        if (rank != sizes.home(expert)) placement.away += share;
      }
    }
  }
  return placement;
}

std::vector<EchoCopy> eplb_moves(std::span<const int32_t> before, std::span<const int32_t> after, int ranks) {
  const auto of_rank = static_cast<std::ptrdiff_t>(after.size()) / ranks;
  std::vector<EchoCopy> moves;
  for (std::ptrdiff_t i = 0; i < std::ssize(after); ++i) {
    const auto rank = i / of_rank, first = rank * of_rank;
    const auto held = before.begin() + first;
    if (after[static_cast<size_t>(i)] < 0) continue;
    if (std::find(held, held + of_rank, after[static_cast<size_t>(i)]) != held + of_rank) continue;
    const auto from = std::find(before.begin(), before.end(), after[static_cast<size_t>(i)]);
    const EchoCopy move{after[static_cast<size_t>(i)], static_cast<int32_t>((from - before.begin()) / of_rank),
                        static_cast<int32_t>(rank)};
    if (std::find(moves.begin(), moves.end(), move) == moves.end()) moves.push_back(move);  // duplicates on one rank
  }
  return moves;
}

std::vector<int32_t> eplb_start(const plan::EchoSizes& sizes, int replicas) {
  const int of_rank = replicas / sizes.ranks;
  std::vector<int32_t> result(static_cast<size_t>(replicas), -1);
  for (int expert = 0; expert < sizes.experts; ++expert) {
    const int at = sizes.home(expert) * of_rank + expert % sizes.home_experts();
    result[static_cast<size_t>(at)] = expert;
  }
  return result;
}

}  // namespace metroplex::bench
