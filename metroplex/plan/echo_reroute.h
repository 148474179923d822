// The rows of one source rank after a plan of clones: from the experts that tokens chose to the columns that they are
// sent to (EchoSizes::columns), and back.
#pragma once

#include <algorithm>
#include <span>

#include "plan/echo.h"

namespace metroplex::plan {

struct EchoRerouteWorkspace {
  std::vector<int32_t> clone, next;  // [experts] the clone that rows go to now, -1: home; [clones] the one behind it
  std::vector<int64_t> left;         // [experts] rows that it still takes
};

// experts [tokens, topk]: the different experts that each token of `rank` chose, -1: none. Of an expert's tokens in
// their order the first from(rank, clone) go to its first clone, the next ones to the second, the rest stay at home.
// columns [tokens, topk]: where each choice goes, so what belongs to a choice, as its probability, stays in its
// place.
void echo_reroute(const EchoPlan& plan, int rank, std::span<const int32_t> experts, EchoRerouteWorkspace& workspace,
                  std::span<int32_t> columns);
std::vector<int32_t> echo_reroute(const EchoPlan& plan, int rank, std::span<const int32_t> experts);

// [columns] the expert that each computes with; -1: a slot without owner.
std::vector<int32_t> echo_column_experts(const EchoPlan& plan);

// by_column [n, columns] to by_expert [n, experts]: what stands at an expert's home and at its clones is added up, in
// the order of columns. Of rows of the above at most one of these is not zero, so nothing is rounded.
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
