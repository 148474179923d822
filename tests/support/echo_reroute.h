// Reference implementation of kernels/echo_plan.h: maps the rows of one source rank from chosen experts to
// destination slots (EchoSizes::columns), and back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "plan/echo.h"

namespace metroplex::plan {

struct EchoRerouteWorkspace {
  std::vector<int32_t> replica, next;  // [experts] current replica (`replica`) of an expert, -1: the owner; [replica
                                       // slots] the replica after it
  std::vector<int64_t> left;           // [experts] rows that the current replica still accepts
};

// Sets the expert's current replica to the first one from `replica` on that receives rows of `rank`, and its row
// count.
inline void take_replica(const EchoPlan& plan, int rank, int32_t expert, int32_t replica,
                         EchoRerouteWorkspace& work) {
  while (replica >= 0 && plan.from(rank, replica) == 0) replica = work.next[static_cast<size_t>(replica)];
  work.replica[static_cast<size_t>(expert)] = replica;
  work.left[static_cast<size_t>(expert)] = replica < 0 ? 0 : plan.from(rank, replica);
}

// experts [tokens, topk]: the distinct experts that each token of `rank` chose, -1: none. The first from(rank,
// replica) tokens of an expert go to its first replica, the next ones to the second, the rest to the owner. columns
// [tokens, topk]: the destination slot of each choice, at the same index as the choice and its probability.
inline void echo_reroute(const EchoPlan& plan, int rank, std::span<const int32_t> experts, EchoRerouteWorkspace& work,
                         std::span<int32_t> columns) {
  MPX_ASSERT(experts.size() == columns.size(), experts.size(), " choices to ", columns.size(), " columns");
  const EchoSizes sizes = plan.sizes;
  work.replica.assign(static_cast<size_t>(sizes.experts), -1);
  work.left.resize(static_cast<size_t>(sizes.experts));
  work.next.resize(static_cast<size_t>(sizes.replicas()));
  for (int32_t replica = sizes.replicas() - 1; replica >= 0; --replica) {
    const int32_t expert = plan.owner[static_cast<size_t>(replica)];
    if (expert < 0) continue;
    work.next[static_cast<size_t>(replica)] = work.replica[static_cast<size_t>(expert)];
    work.replica[static_cast<size_t>(expert)] = replica;
  }
  for (int32_t expert = 0; expert < sizes.experts; ++expert)
    take_replica(plan, rank, expert, work.replica[static_cast<size_t>(expert)], work);
  for (size_t i = 0; i < experts.size(); ++i) {
    const int32_t expert = experts[i];
    if (expert < 0) {
      columns[i] = -1;
      continue;
    }
    const int32_t replica = work.replica[static_cast<size_t>(expert)];
    columns[i] = replica < 0 ? sizes.column_of_expert(expert) : sizes.column_of_replica(replica);
    if (replica >= 0 && --work.left[static_cast<size_t>(expert)] == 0)
      take_replica(plan, rank, expert, work.next[static_cast<size_t>(replica)], work);
  }
}
inline std::vector<int32_t> echo_reroute(const EchoPlan& plan, int rank, std::span<const int32_t> experts) {
  EchoRerouteWorkspace work;
  std::vector<int32_t> columns(experts.size());
  echo_reroute(plan, rank, experts, work, columns);
  return columns;
}

// [columns] the expert computed in each destination slot; -1: an unused replica slot.
inline std::vector<int32_t> echo_column_experts(const EchoPlan& plan) {
  std::vector<int32_t> experts(static_cast<size_t>(plan.sizes.columns()), -1);
  for (int32_t expert = 0; expert < plan.sizes.experts; ++expert)
    experts[static_cast<size_t>(plan.sizes.column_of_expert(expert))] = expert;
  for (int replica = 0; replica < plan.sizes.replicas(); ++replica)
    experts[static_cast<size_t>(plan.sizes.column_of_replica(replica))] = plan.owner[static_cast<size_t>(replica)];
  return experts;
}

// by_column [n, columns] to by_expert [n, experts]: sums the owner's and the replicas' entries in slot order. For
// rerouted rows at most one summand is nonzero, so nothing is rounded.
template <class Number>
void echo_fold(const EchoPlan& plan, std::span<const Number> by_column, std::span<Number> by_expert) {
  const std::vector<int32_t> expert_of = echo_column_experts(plan);
  const size_t experts = static_cast<size_t>(plan.sizes.experts);
  std::fill(by_expert.begin(), by_expert.end(), Number{});
  for (size_t i = 0; i < by_column.size(); ++i) {
    const int32_t expert = expert_of[i % expert_of.size()];
    if (expert >= 0) by_expert[i / expert_of.size() * experts + static_cast<size_t>(expert)] += by_column[i];
  }
}

}  // namespace metroplex::plan
