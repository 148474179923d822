#include "replay/timeline.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "plan/pipeline_table.h"
#include "plan/verify.h"

namespace metroplex::replay {
namespace {

class Replay {
 public:
  Replay(const plan::PipelineTable& table, const TimelineCosts& costs)
      : table_(table),
        costs_(costs),
        at_(table.ranks.size(), 0),
        clock_(table.ranks.size(), 0.0),
        has_weight_(table.splits_backward()) {
    result_.ranks.resize(table.ranks.size());
  }

  Timeline run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        while (at_[rank] < table_.ranks[rank].size() && step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      MPX_CHECK(at_[rank] == table_.ranks[rank].size(), "plan", "pipeline table '", table_.name, "': rank ", rank,
                " never gets past action ", at_[rank]);
    }
    summarize(table_, result_);
    return std::move(result_);
  }

 private:
  // Runs the next action or call of `rank`. Returns false if it must wait for another rank.
  bool step(size_t rank) {
    const plan::Action& action = table_.ranks[rank][at_[rank]];
    if (is_p2p(action.kind)) return costs_.blocking_p2p ? blocking_call(rank) : free_p2p(rank, action);
    double start = clock_[rank];
    if (!costs_.blocking_p2p && is_compute(action.kind) && !wait_for_inputs(rank, action, start)) return false;
    // Actions in turns start when the inputs of both have arrived.
    if (!costs_.blocking_p2p && action.in_turns && !wait_for_inputs(rank, table_.ranks[rank][at_[rank] + 1], start))
      return false;
    record(rank, action, start, start + duration(rank, action));
    ++at_[rank];
    return true;
  }

  double duration(size_t rank, const plan::Action& action) const {
    double time = 0;
    if (action.kind == plan::ActionKind::forward) time = costs_.forward;
    if (action.kind == plan::ActionKind::weight) time = costs_.weight;
    if (action.kind == plan::ActionKind::backward)
      time = std::max(0.0, costs_.backward - (has_weight_ ? costs_.weight : 0));
    const auto stage = static_cast<size_t>(table_.placement().stage_of({static_cast<int>(rank), action.chunk}));
    return time / table_.num_chunks * (costs_.stage_scale.empty() ? 1 : costs_.stage_scale[stage]);
  }

  void record(size_t rank, const plan::Action& action, double start, double end) {
    result_.ranks[rank].push_back({action, start, end});
    if (!is_p2p(action.kind) || costs_.blocking_p2p) clock_[rank] = std::max(clock_[rank], end);
  }

  // Moves `start` to the arrival of the tensors that `action` uses. Returns false if one has not been sent yet.
  // Arrival matters even though the recv is earlier in the list, because the recv only posts it.
  bool wait_for_inputs(size_t rank, const plan::Action& action, double& start) const {
    if (action.kind == plan::ActionKind::weight) return true;
    const bool forward = action.kind == plan::ActionKind::forward;
    const int r = static_cast<int>(rank);
    if (table_.placement().peer({r, action.chunk}, forward ? -1 : 1) < 0) return true;
    plan::Action recv = action;
    recv.kind = forward ? plan::ActionKind::recv_forward : plan::ActionKind::recv_backward;
    const auto arrival = arrival_.find(transfer_id(table_, r, recv));
    if (arrival == arrival_.end()) return false;
    start = std::max(start, arrival->second);
    return true;
  }

  bool free_p2p(size_t rank, const plan::Action& action) {
    const double now = clock_[rank];
    const int64_t id = transfer_id(table_, static_cast<int>(rank), action);
    if (is_send(action.kind)) arrival_[id] = now + costs_.p2p;
    record(rank, action, now, is_send(action.kind) ? now + costs_.p2p : now);
    ++at_[rank];
    return true;
  }

  // Returns false until both sides of every transfer have entered their calls; `came_` holds these times.
  bool blocking_call(size_t rank) {
    const auto& actions = table_.ranks[rank];
    const size_t begin = at_[rank], end = call_end(actions, begin);
    const double now = clock_[rank];
    double done = now;
    bool complete = true;
    for (size_t i = begin; i < end; ++i) {
      const int64_t id = transfer_id(table_, static_cast<int>(rank), actions[i]) * 2;
      const int mine = is_send(actions[i].kind) ? 0 : 1;
      came_.emplace(id + mine, now);
      const auto other = came_.find(id + 1 - mine);
      if (other == came_.end()) {
        complete = false;
      } else {
        done = std::max(done, std::max(now, other->second) + costs_.p2p);
      }
    }
    if (!complete) return false;
    for (size_t i = begin; i < end; ++i) record(rank, actions[i], now, done);
    at_[rank] = end;
    return true;
  }

  const plan::PipelineTable& table_;
  const TimelineCosts& costs_;
  std::vector<size_t> at_;
  std::vector<double> clock_;
  std::unordered_map<int64_t, double> arrival_;  // arrival of a transfer at its receiver
  std::unordered_map<int64_t, double> came_;     // blocking: time at which a side entered its call
  bool has_weight_;
  Timeline result_;
};

}  // namespace

void summarize(const plan::PipelineTable& table, Timeline& timeline) {
  double busy_sum = 0;
  for (const auto& actions : timeline.ranks) {
    double busy = 0;
    for (const TimedAction& timed : actions) {
      timeline.length = std::max(timeline.length, timed.end);
      if (is_compute(timed.action.kind)) busy += timed.end - timed.start;
    }
    timeline.busy.push_back(busy);
    busy_sum += busy;
  }
  for (const double busy : timeline.busy) {
    timeline.bubble_share.push_back(timeline.length > 0 ? 1 - busy / timeline.length : 0);
  }
  const double all = timeline.length * static_cast<double>(timeline.ranks.size());
  timeline.total_bubble_share = all > 0 ? 1 - busy_sum / all : 0;
  timeline.peak_live_activations = inspect_table(table).peak_live_activations;
}

Timeline replay(const plan::PipelineTable& table, const TimelineCosts& costs) {
  constexpr double kLongest = 1e15;  // keeps all sums finite
  for (const double time : {costs.forward, costs.backward, costs.weight, costs.p2p}) {
    MPX_CHECK(time >= 0 && time <= kLongest, "plan", "a time must be between 0 and ", kLongest, ", not ", time);
  }
  MPX_CHECK(costs.stage_scale.empty() || costs.stage_scale.size() == static_cast<size_t>(table.placement().stages()),
            "plan", costs.stage_scale.size(), " stage factors for ", table.placement().stages(), " model stages");
  return Replay(table, costs).run();
}

double formula_bubble_share(int num_stages, int num_chunks, int num_microbatches, bool splits_backward) {
  const double others = num_stages - 1;
  const double work = static_cast<double>(num_chunks) * num_microbatches * (splits_backward ? 3 : 1);
  return others / (work + others);
}

}  // namespace metroplex::replay
