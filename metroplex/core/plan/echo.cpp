#include "plan/echo.h"

#include "base/error.h"
#include "plan/echo_parts.h"

namespace metroplex::plan {
namespace {

void reserve(const EchoSizes& sizes, EchoWorkspace& work, EchoPlan& plan) {
  if (work.sizes == sizes) return;
  work.sizes = sizes;
  const size_t most = static_cast<size_t>(std::max({sizes.experts, sizes.replicas(), kMostEchoCaps}));
  for (EchoFill* const fill : {&work.trial, &work.best, &work.other}) {
    for (auto* const values : {&fill->owner, &fill->used, &fill->hot}) values->reserve(most);
    for (auto* const values : {&fill->rows, &fill->left, &fill->room}) values->reserve(most);
  }
  for (auto* const values : {&work.expert_rows, &work.loads, &work.caps, &work.spill, &work.spare, &work.kept,
                             &work.column, &work.quota, &work.remainder})
    values->reserve(most);
  for (auto* const values : {&work.rank_order, &work.expert_order, &work.replica_order, &work.queue})
    values->reserve(most);
  plan.source_rows.reserve(static_cast<size_t>(sizes.ranks) * static_cast<size_t>(sizes.replicas()));
}

void sum_counts(const EchoCounts& counts, EchoWorkspace& work) {
  const EchoSizes sizes = counts.sizes;
  work.expert_rows.assign(static_cast<size_t>(sizes.experts), 0);
  work.loads.assign(static_cast<size_t>(sizes.ranks), 0);
  work.total = 0;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    const int64_t* const row = counts.rows + int64_t{rank} * sizes.experts;
    for (int expert = 0; expert < sizes.experts; ++expert)
      work.expert_rows[static_cast<size_t>(expert)] += row[expert];
  }
  for (int expert = 0; expert < sizes.experts; ++expert) {
    work.loads[static_cast<size_t>(sizes.home(expert))] += work.expert_rows[static_cast<size_t>(expert)];
    work.total += work.expert_rows[static_cast<size_t>(expert)];
  }
}

void run_planner(EchoTask task) {
  switch (task.options.planner) {
    case config::EchoPlanner::greedy:
      return echo_greedy(task);
    case config::EchoPlanner::binpack:
      return echo_binpack(task);
    case config::EchoPlanner::capfill:
      return echo_capfill(task);
    case config::EchoPlanner::exact:
      return echo_exact(task);
  }
}

void final_loads(EchoTask task, EchoPlan& plan) {
  plan.final_loads = task.work.loads;
  for (int replica = 0; replica < task.sizes.replicas(); ++replica) {
    const int32_t expert = plan.owner[static_cast<size_t>(replica)];
    if (expert < 0) continue;
    plan.final_loads[static_cast<size_t>(task.sizes.home(expert))] -= plan.rows[static_cast<size_t>(replica)];
    plan.final_loads[static_cast<size_t>(task.sizes.rank_of_replica(replica))] +=
        plan.rows[static_cast<size_t>(replica)];
  }
}

}  // namespace

int64_t EchoPlan::max_load() const { return *std::max_element(final_loads.begin(), final_loads.end()); }

int EchoPlan::num_replicas() const {
  return static_cast<int>(std::count_if(owner.begin(), owner.end(), [](int32_t expert) { return expert >= 0; }));
}

void plan_echo(const EchoCounts& counts, const EchoOptions& options, EchoWorkspace& workspace, EchoPlan& plan) {
  const EchoSizes sizes = counts.sizes;
  MPX_ASSERT(sizes.ranks > 0 && sizes.slots >= 0 && sizes.experts > 0 && sizes.experts % sizes.ranks == 0,
             sizes.experts, " experts on ", sizes.ranks, " ranks with ", sizes.slots, " slots");
  reserve(sizes, workspace, plan);
  sum_counts(counts, workspace);
  const EchoTask task{sizes, options, workspace};
  if (options.random) echo_random(counts, task);
  else run_planner(task);
  plan.sizes = sizes;
  plan.owner = workspace.best.owner;
  plan.rows = workspace.best.rows;
  final_loads(task, plan);
  echo_split(counts, task, plan);
}

EchoPlan plan_echo(const EchoCounts& counts, const EchoOptions& options) {
  EchoWorkspace workspace;
  EchoPlan plan;
  plan_echo(counts, options, workspace, plan);
  return plan;
}

int64_t echo_lower_bound(const EchoCounts& counts) {
  const EchoSizes sizes = counts.sizes;
  EchoWorkspace work;
  sum_counts(counts, work);
  // Maximum rows that a rank can receive: all rows of the largest experts of other ranks.
  std::vector<int64_t> most(static_cast<size_t>(sizes.ranks), 0);
  std::vector<int> order(static_cast<size_t>(sizes.experts));
  for (int expert = 0; expert < sizes.experts; ++expert) order[static_cast<size_t>(expert)] = expert;
  const auto rows = [&](int expert) { return work.expert_rows[static_cast<size_t>(expert)]; };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return rows(a) > rows(b); });
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    int free = sizes.slots;
    for (auto expert = order.begin(); expert != order.end() && free > 0; ++expert) {
      if (sizes.home(*expert) == rank) continue;
      most[static_cast<size_t>(rank)] += rows(*expert);
      --free;
    }
  }
  const auto possible = [&](int64_t cap) {
    int64_t surplus = 0, taken = 0;
    for (size_t rank = 0; rank < most.size(); ++rank) {
      surplus += std::max<int64_t>(0, work.loads[rank] - cap);
      taken += std::min(std::max<int64_t>(0, cap - work.loads[rank]), most[rank]);
    }
    return surplus <= taken;
  };
  int64_t low = (work.total + sizes.ranks - 1) / sizes.ranks;
  int64_t high = *std::max_element(work.loads.begin(), work.loads.end());
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (possible(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

}  // namespace metroplex::plan
