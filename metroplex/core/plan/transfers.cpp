#include "plan/transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace metroplex::plan {

double ActionTimes::of(ActionKind kind, int stage) const {
  const double time = kind == ActionKind::forward    ? forward
                      : kind == ActionKind::backward ? backward
                      : kind == ActionKind::weight   ? weight
                                                     : 0;
  return time * (scale.empty() ? 1 : scale.at(static_cast<size_t>(stage)));
}

namespace {

// The end of every compute action, by kind, stage and microbatch; -1: not yet run.
class Ends {
 public:
  explicit Ends(const PipelineTable& table)
      : placement_(table.placement()),
        microbatches_(static_cast<size_t>(table.num_microbatches)),
        ends_(3 * static_cast<size_t>(placement_.stages()) * microbatches_, -1) {}

  double& at(ActionKind kind, int stage, int microbatch) {
    const auto row =
        static_cast<size_t>(kind) * static_cast<size_t>(placement_.stages()) + static_cast<size_t>(stage);
    return ends_[row * microbatches_ + static_cast<size_t>(microbatch)];
  }

  // Returns the time at which the inputs of `action` have arrived on `rank`; -1: some input does not exist yet.
  double inputs(int rank, const Action& action, double p2p) {
    const int stage = placement_.stage_of({rank, action.chunk}), m = action.microbatch;
    const bool forward = action.kind == ActionKind::forward;
    if (action.kind == ActionKind::weight) return at(ActionKind::backward, stage, m);
    const double own = forward ? 0 : at(ActionKind::forward, stage, m);
    const auto other = placement_.neighbour({rank, action.chunk}, forward ? -1 : 1);
    if (!other || own < 0) return own;
    const double end = at(action.kind, placement_.stage_of(*other), m);
    return end < 0 ? -1 : std::max(own, end + (other->rank == rank ? 0 : p2p));
  }

 private:
  StagePlacement placement_;
  size_t microbatches_;
  std::vector<double> ends_;
};

}  // namespace

namespace {

struct Simulation {
  std::vector<std::vector<TimedCompute>> ranks;
  std::vector<size_t> next;  // per rank, the number of actions that ran
};

// shortest: lower bound of every action's time.
Simulation run_simulation(const PipelineTable& table, const ActionTimes& times, double shortest = 0) {
  Ends ends(table);
  Simulation result{std::vector<std::vector<TimedCompute>>(table.ranks.size()),
                    std::vector<size_t>(table.ranks.size(), 0)};
  const auto stage_of = [&](size_t rank, const Action& action) {
    return table.placement().stage_of({static_cast<int>(rank), action.chunk});
  };
  const auto run_rank = [&](size_t rank) {
    size_t& next = result.next[rank];
    std::vector<TimedCompute>& computes = result.ranks[rank];
    const size_t before = next;
    for (; next < table.ranks[rank].size(); ++next) {
      const Action& action = table.ranks[rank][next];
      if (!is_compute(action.kind)) continue;
      // Actions in turns start when the inputs of both have arrived, and end together.
      const size_t number = action.in_turns ? 2 : 1;
      double start = computes.empty() ? 0 : computes.back().end, time = 0;
      bool ready = true;
      for (size_t i = next; i < next + number; ++i) {
        const Action& one = table.ranks[rank][i];
        const double inputs = ends.inputs(static_cast<int>(rank), one, times.p2p);
        ready = ready && inputs >= 0;
        start = std::max(start, inputs);
        time += std::max(shortest, times.of(one.kind, stage_of(rank, one)));
      }
      if (!ready) break;
      for (size_t i = next; i < next + number; ++i) {
        const Action& one = table.ranks[rank][i];
        computes.push_back({one, start, start + time});
        ends.at(one.kind, stage_of(rank, one), one.microbatch) = start + time;
      }
      next += number - 1;
    }
    return next > before;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < table.ranks.size(); ++rank) moved = run_rank(rank) || moved;
  }
  return result;
}

double last_end(const std::vector<std::vector<TimedCompute>>& ranks) {
  double length = 0;
  for (const auto& computes : ranks) length = std::max(length, computes.empty() ? 0 : computes.back().end);
  return length;
}

}  // namespace

static std::vector<std::vector<TimedCompute>> checked_simulation(const PipelineTable& table, const ActionTimes& times,
                                                                 double shortest) {
  Simulation simulation = run_simulation(table, times, shortest);
  for (size_t rank = 0; rank < simulation.next.size(); ++rank) {
    MPX_CHECK(simulation.next[rank] == table.ranks[rank].size(), "plan", "schedule '", table.name, "': rank ", rank,
              " never gets past action ", simulation.next[rank]);
  }
  return std::move(simulation.ranks);
}

std::vector<std::vector<TimedCompute>> simulate(const PipelineTable& table, const ActionTimes& times) {
  return checked_simulation(table, times, 0);
}

std::optional<double> try_length(const PipelineTable& table, const ActionTimes& times) {
  const Simulation simulation = run_simulation(table, times);
  for (size_t rank = 0; rank < simulation.next.size(); ++rank) {
    if (simulation.next[rank] != table.ranks[rank].size()) return std::nullopt;
  }
  return last_end(simulation.ranks);
}

double step_length(const PipelineTable& table, const ActionTimes& times) { return last_end(simulate(table, times)); }

PipelineTable add_transfers(const PipelineTable& table, const ActionTimes& times) {
  const StagePlacement placement = table.placement();
  // Positive times keep the order of dependent actions apart, also in stages without layers.
  const double whole = times.forward + times.backward + times.weight;
  const auto computes = checked_simulation(table, times, 1e-6 * (whole > 0 ? whole : 1));
  // Transfers to issue after compute action `position` of a rank (0: before the first), in the order of their times.
  struct Transfer {
    double time;
    int64_t id;  // breaks ties in the same way on both ranks
    Action action;
  };
  using Position = std::pair<size_t, size_t>;  // rank, number of compute actions before
  std::map<Position, std::vector<Transfer>> calls;
  for (size_t rank = 0; rank < computes.size(); ++rank) {
    for (size_t i = 0; i < computes[rank].size(); ++i) {
      const TimedCompute& compute = computes[rank][i];
      if (compute.action.kind == ActionKind::weight) continue;
      const bool forward = compute.action.kind == ActionKind::forward;
      const auto other = placement.neighbour({static_cast<int>(rank), compute.action.chunk}, forward ? 1 : -1);
      if (!other || other->rank == static_cast<int>(rank)) continue;
      Action send = compute.action;
      send.in_turns = false;
      Action receive = send;
      send.kind = forward ? ActionKind::send_forward : ActionKind::send_backward;
      send.peer = other->rank;
      receive.kind = forward ? ActionKind::recv_forward : ActionKind::recv_backward;
      receive.peer = static_cast<int>(rank);
      receive.chunk = other->chunk;
      const int64_t id = transfer_id(table, static_cast<int>(rank), send);
      const auto& peer = computes[static_cast<size_t>(other->rank)];
      const auto first_later = std::partition_point(
          peer.begin(), peer.end(), [&](const TimedCompute& timed) { return timed.start < compute.end; });
      calls[{rank, i + (compute.action.in_turns ? 2 : 1)}].push_back({compute.end, id, send});
      calls[{static_cast<size_t>(other->rank), static_cast<size_t>(first_later - peer.begin())}].push_back(
          {compute.end, id, receive});
    }
  }
  PipelineTable complete = table;
  for (size_t rank = 0; rank < computes.size(); ++rank) {
    std::vector<Action>& actions = complete.ranks[rank];
    actions.clear();
    for (size_t i = 0; i <= computes[rank].size(); ++i) {
      if (i > 0) actions.push_back(computes[rank][i - 1].action);
      const auto found = calls.find({rank, i});
      if (found == calls.end()) continue;
      std::vector<Transfer>& transfers = found->second;
      std::sort(transfers.begin(), transfers.end(), [](const Transfer& left, const Transfer& right) {
        return std::tie(left.time, left.id) < std::tie(right.time, right.id);
      });
      for (const Transfer& transfer : transfers) actions.push_back(transfer.action);
      for (const Transfer& transfer : transfers) {
        if (transfer.action.kind == ActionKind::send_forward)
          actions.push_back({ActionKind::free, transfer.action.microbatch, transfer.action.chunk, -1, -1});
      }
    }
  }
  return complete;
}

}  // namespace metroplex::plan
