#include "plan/schedule_search.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "plan/greedy.h"
#include "plan/schedules/registry.h"
#include "plan/table_writer.h"
#include "plan/verify.h"

namespace metroplex::plan {

ActionTimes chunk_times(const ActionTimes& times, const StagePlacement& placement) {
  ActionTimes result = times;
  result.forward /= placement.chunks, result.backward /= placement.chunks, result.weight /= placement.chunks;
  result.scale.clear();
  for (int stage = 0; stage < placement.stages() && !times.scale.empty(); ++stage)
    result.scale.push_back(times.scale.at(static_cast<size_t>(placement.place_of(stage).rank)));
  return result;
}

namespace {

// A table without weight actions does their work in its backwards.
ActionTimes times_for(const SearchRequest& request, const PipelineTable& table) {
  ActionTimes times = chunk_times(request.times, table.placement());
  if (!table.splits_backward()) times.backward += std::exchange(times.weight, 0);
  return times;
}

// The maximum number of live forwards of each rank, from the order of its compute actions.
bool within_limits(const PipelineTable& table, const std::vector<int>& limits) {
  const ActionKind last = table.splits_backward() ? ActionKind::weight : ActionKind::backward;
  for (size_t rank = 0; rank < table.ranks.size(); ++rank) {
    int live = 0;
    for (const Action& action : table.ranks[rank]) {
      live += action.kind == ActionKind::forward ? 1 : action.kind == last ? -1 : 0;
      if (live > limits[rank] * table.num_chunks) return false;
    }
  }
  return true;
}

PipelineTable only_computes(PipelineTable table) {
  for (std::vector<Action>& actions : table.ranks)
    std::erase_if(actions, [](const Action& action) { return !is_compute(action.kind); });
  return table;
}

constexpr size_t kMostSimulated = 20'000'000;  // actions in one local search: about two seconds

// Exchanges adjacent actions of one rank and keeps what is not longer.
FoundSchedule improve(const SearchRequest& request, FoundSchedule best) {
  PipelineTable order = only_computes(best.table);
  const ActionTimes times = times_for(request, order);
  std::mt19937 random(1);
  size_t size = 1;
  for (const std::vector<Action>& actions : order.ranks) size += actions.size();
  const int steps = std::min(request.steps, static_cast<int>(kMostSimulated / size));
  for (int step = 0; step < steps; ++step) {
    auto& actions = order.ranks[random() % order.ranks.size()];
    const size_t from = random() % actions.size(), distance = 1 + random() % 4;
    if (from + distance >= actions.size()) continue;
    const auto begin = actions.begin() + static_cast<std::ptrdiff_t>(from);
    // The microbatches of a kind and chunk stay in order: they are alike.
    const auto moved = begin + static_cast<std::ptrdiff_t>(distance);
    const auto alike = [&](const Action& other) { return other.kind == moved->kind && other.chunk == moved->chunk; };
    if (std::any_of(begin, moved, alike)) continue;
    std::rotate(begin, moved, moved + 1);
    const std::optional<double> length =
        within_limits(order, request.live_limits) ? try_length(order, times) : std::nullopt;
    if (!length || *length > best.length) {  // undo
      std::rotate(begin, begin + 1, moved + 1);
      continue;
    }
    best.length = *length;
  }
  order.live_activation_bounds.clear();  // of the fixed schedule
  best.table = add_transfers(order, times);
  return best;
}

}  // namespace

std::vector<FoundSchedule> fixed_schedules(const SearchRequest& request) {
  std::vector<FoundSchedule> all;
  const auto add = [&](config::Schedule schedule, int chunks) {
    if (request.num_chunks > 0 && request.num_chunks != chunks) return;
    if (request.splits_backward && !config::splits_backward(schedule)) return;
    const PipelineTable table = build_schedule(schedule, {request.num_stages, chunks, request.num_microbatches});
    if (within_limits(table, request.live_limits))
      all.push_back({table, step_length(table, times_for(request, table))});
  };
  using config::Schedule;
  if (request.num_stages == 1) add(Schedule::none, 1);
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1, Schedule::zb_h2})
    add(schedule, 1);
  for (const Schedule schedule : {Schedule::zb_v, Schedule::dualpipe_v}) add(schedule, 2);
  return all;
}

FoundSchedule search_schedule(const SearchRequest& request) {
  MPX_CHECK(request.live_limits.size() == static_cast<size_t>(request.num_stages), "plan", request.live_limits.size(),
            " memory limits for ", request.num_stages, " ranks; give one per rank");
  for (const int limit : request.live_limits) {
    MPX_CHECK(limit >= 1, "plan", "a limit of ", limit,
              " live microbatches: must be at least 1, because a backward needs its forward");
  }
  std::vector<FoundSchedule> candidates = fixed_schedules(request);
  for (int chunks = 1; chunks <= 2; ++chunks) {
    if (request.num_chunks > 0 && request.num_chunks != chunks) continue;
    const ScheduleRequest schedule{request.num_stages, chunks, request.num_microbatches};
    const PipelineTable shape = chunks == 1 ? make_table(schedule, "searched") : make_v_table(schedule, "searched");
    const ActionTimes times = chunk_times(request.times, shape.placement());
    GreedyRules rules;
    for (const int limit : request.live_limits) rules.live_limits.push_back(limit * chunks);
    if (std::optional<PipelineTable> order = shortest_greedy_order(shape, times, rules))
      candidates.push_back({add_transfers(*order, times), step_length(*order, times)});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const FoundSchedule& left, const FoundSchedule& right) { return left.length < right.length; });
  FoundSchedule best;
  for (size_t i = 0; i < std::min<size_t>(3, candidates.size()); ++i) {
    FoundSchedule better = improve(request, candidates[i]);
    if (i == 0 || better.length < best.length) best = std::move(better);
  }
  verify(best.table);
  return best;
}

}  // namespace metroplex::plan
