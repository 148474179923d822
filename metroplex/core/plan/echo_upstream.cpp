// The planners of Megatron's pull request 2368: greedy by interval overlap, and approximate bin packing.
#include "plan/echo_parts.h"

#include <cmath>
#include <numeric>

#include "base/error.h"

namespace metroplex::plan {
namespace {

constexpr int kQueues = 8;

// Returns the indices of positive values, largest first, ties in input order. Writes their values to `sorted`.
std::span<const int32_t> by_size(EchoSpan values, std::vector<int32_t>& order, std::vector<int64_t>& sorted) {
  order.resize(values.size());
  size_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > 0) order[count++] = static_cast<int32_t>(i);
  }
  const auto value = [&](int32_t i) { return values[static_cast<size_t>(i)]; };
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
            [&](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  sorted.resize(values.size());
  for (size_t i = 0; i < count; ++i) sorted[i] = value(order[i]);
  return {order.data(), count};
}

void keep_largest(EchoTask task, int rank, int32_t expert, int64_t rows) {
  EchoFill& fill = task.work.best;
  int32_t* const owner = fill.owner.data() + rank * task.sizes.slots;
  int64_t* const held = fill.rows.data() + rank * task.sizes.slots;
  int slot = task.sizes.slots;
  while (slot > 0 && held[slot - 1] < rows) --slot;
  if (slot == task.sizes.slots) return;
  std::move_backward(owner + slot, owner + task.sizes.slots - 1, owner + task.sizes.slots);
  std::move_backward(held + slot, held + task.sizes.slots - 1, held + task.sizes.slots);
  owner[slot] = expert;
  held[slot] = rows;
}

// True if an owner with `after` rows may not take `rows` back. The comparison is in float32 as upstream, or in
// integers.
bool beyond(EchoTask task, int64_t after, int64_t rows) {
  if (task.options.float32) {
    const float limit = static_cast<float>(task.mean()) * static_cast<float>(1 + task.options.reclaim);
    return static_cast<float>(rows) > limit - static_cast<float>(after);
  }
  return rows > task.mean() + echo_basis_points(task.mean(), std::llround(task.options.reclaim * 10000)) - after;
}

// Drops replicas that no rank needs: each owner takes its smallest ones back while its load stays within the limit.
// If an owner exceeds the limit even without that, all replicas are kept, including those of other owners.
void reclaim(EchoTask task) {
  EchoFill& fill = task.work.best;
  const int replicas = task.sizes.replicas();
  std::vector<int32_t>& order = task.work.replica_order;
  std::vector<int64_t>& given = task.work.spare;
  order.resize(static_cast<size_t>(replicas));
  std::iota(order.begin(), order.end(), 0);
  const auto rows = [&](int32_t replica) -> int64_t& { return fill.rows[static_cast<size_t>(replica)]; };
  const auto home = [&](int32_t replica) {
    return static_cast<size_t>(task.sizes.home(fill.owner[static_cast<size_t>(replica)]));
  };
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return rows(a) != rows(b) ? rows(a) < rows(b) : a < b; });
  std::fill(given.begin(), given.end(), 0);
  for (int replica = 0; replica < replicas; ++replica) {
    if (rows(replica) > 0) given[home(replica)] += rows(replica);
  }
  const auto after = [&](size_t rank) { return task.work.loads[rank] - given[rank]; };
  for (size_t rank = 0; rank < given.size(); ++rank) {
    if (beyond(task, after(rank), 0)) return;
  }
  std::vector<int64_t>& taken = task.work.kept;
  taken.assign(given.size(), 0);
  for (const int32_t replica : order) {
    if (rows(replica) == 0) continue;
    const size_t rank = home(replica);
    taken[rank] += rows(replica);
    if (beyond(task, after(rank), taken[rank])) continue;
    rows(replica) = 0;
    fill.owner[static_cast<size_t>(replica)] = -1;
  }
}

}  // namespace

void echo_spills(EchoTask task) {
  EchoWorkspace& work = task.work;
  const int64_t mean = task.mean();
  work.spare.resize(static_cast<size_t>(task.sizes.ranks));
  work.spill.assign(static_cast<size_t>(task.sizes.experts), 0);
  work.expert_order.resize(work.spill.size());
  const auto rows = [&](int32_t expert) { return work.expert_rows[static_cast<size_t>(expert)]; };
  const size_t home = static_cast<size_t>(task.sizes.home_experts());
  for (size_t rank = 0; rank < work.spare.size(); ++rank) {
    const int64_t load = work.loads[rank];
    work.spare[rank] = std::max<int64_t>(0, mean - load);
    if (load <= mean) continue;
    const std::span<int32_t> order = std::span(work.expert_order).subspan(rank * home, home);
    std::iota(order.begin(), order.end(), static_cast<int32_t>(rank * home));
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return rows(a) != rows(b) ? rows(a) < rows(b) : a < b; });
    int64_t sum = 0;
    for (const int32_t expert : order) {
      const int64_t before = std::max<int64_t>(0, sum - mean);
      sum += rows(expert);
      work.spill[static_cast<size_t>(expert)] = std::max<int64_t>(0, sum - mean) - before;
    }
  }
}

void echo_greedy(EchoTask task) {
  EchoWorkspace& work = task.work;
  echo_empty(task, work.best);
  echo_spills(task);
  const auto experts = by_size(work.spill, work.expert_order, work.kept);
  const auto ranks = by_size(work.spare, work.rank_order, work.column);
  echo_overlap(EchoSpan(work.kept).first(experts.size()), EchoSpan(work.column).first(ranks.size()),
               [&](int chunk, int bucket, int64_t rows) {
                 keep_largest(task, ranks[static_cast<size_t>(bucket)], experts[static_cast<size_t>(chunk)], rows);
               });
  if (task.options.reclaim > 0) reclaim(task);
}

void echo_binpack(EchoTask task) {
  MPX_CHECK(task.sizes.slots <= 1, "plan", "binpack supports one slot per rank, got ", task.sizes.slots,
            "; the planners greedy, capfill and exact take any number");
  EchoWorkspace& work = task.work;
  echo_empty(task, work.best);
  echo_spills(task);
  const auto experts = by_size(work.spill, work.expert_order, work.kept);
  const auto ranks = by_size(work.spare, work.rank_order, work.column);
  work.queue.resize(work.spill.size());
  echo_pack(std::span(work.kept).first(experts.size()), EchoSpan(work.column).first(ranks.size()), task.mean(),
            kQueues, work.queue, [&](int chunk, int bucket, int64_t rows) {
              keep_largest(task, ranks[static_cast<size_t>(bucket)], experts[static_cast<size_t>(chunk)], rows);
            });
}

}  // namespace metroplex::plan
