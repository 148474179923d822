#include "plan/echo_reroute.h"

#include "base/error.h"

namespace metroplex::plan {
namespace {

// Of each expert the first clone that takes rows of `rank` at or behind `clone`, with those rows.
void take_clone(const EchoPlan& plan, int rank, int32_t expert, int32_t clone, EchoRerouteWorkspace& work) {
  while (clone >= 0 && plan.from(rank, clone) == 0) clone = work.next[static_cast<size_t>(clone)];
  work.clone[static_cast<size_t>(expert)] = clone;
  work.left[static_cast<size_t>(expert)] = clone < 0 ? 0 : plan.from(rank, clone);
}

}  // namespace

void echo_reroute(const EchoPlan& plan, int rank, std::span<const int32_t> experts, EchoRerouteWorkspace& work,
                  std::span<int32_t> columns) {
  MPX_ASSERT(experts.size() == columns.size(), experts.size(), " choices to ", columns.size(), " columns");
  const EchoSizes sizes = plan.sizes;
  work.clone.assign(static_cast<size_t>(sizes.experts), -1);
  work.left.resize(static_cast<size_t>(sizes.experts));
  work.next.resize(static_cast<size_t>(sizes.clones()));
  for (int32_t clone = sizes.clones() - 1; clone >= 0; --clone) {
    const int32_t expert = plan.owner[static_cast<size_t>(clone)];
    if (expert < 0) continue;
    work.next[static_cast<size_t>(clone)] = work.clone[static_cast<size_t>(expert)];
    work.clone[static_cast<size_t>(expert)] = clone;
  }
  for (int32_t expert = 0; expert < sizes.experts; ++expert)
    take_clone(plan, rank, expert, work.clone[static_cast<size_t>(expert)], work);
  for (size_t i = 0; i < experts.size(); ++i) {
    const int32_t expert = experts[i];
    if (expert < 0) {
      columns[i] = -1;
      continue;
    }
    const int32_t clone = work.clone[static_cast<size_t>(expert)];
    columns[i] = clone < 0 ? sizes.column_of_expert(expert) : sizes.column_of_clone(clone);
    if (clone >= 0 && --work.left[static_cast<size_t>(expert)] == 0)
      take_clone(plan, rank, expert, work.next[static_cast<size_t>(clone)], work);
  }
}

std::vector<int32_t> echo_reroute(const EchoPlan& plan, int rank, std::span<const int32_t> experts) {
  EchoRerouteWorkspace work;
  std::vector<int32_t> columns(experts.size());
  echo_reroute(plan, rank, experts, work, columns);
  return columns;
}

std::vector<int32_t> echo_column_experts(const EchoPlan& plan) {
  std::vector<int32_t> experts(static_cast<size_t>(plan.sizes.columns()), -1);
  for (int32_t expert = 0; expert < plan.sizes.experts; ++expert)
    experts[static_cast<size_t>(plan.sizes.column_of_expert(expert))] = expert;
  for (int clone = 0; clone < plan.sizes.clones(); ++clone)
    experts[static_cast<size_t>(plan.sizes.column_of_clone(clone))] = plan.owner[static_cast<size_t>(clone)];
  return experts;
}

}  // namespace metroplex::plan
