#include "plan/verify.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {
namespace {

constexpr int kKinds = 8;

std::string describe(int rank, size_t index, const Action& action) {
  return base::concat("rank ", rank, " action ", index, ", ", action_name(action.kind), " of microbatch ",
                      action.microbatch, " chunk ", action.chunk);
}

class RankChecker {
 public:
  RankChecker(const PipelineTable& table, int rank, VerifyReport& report)
      : table_(table),
        rank_(rank),
        report_(report),
        count_(static_cast<size_t>(table.num_microbatches) * static_cast<size_t>(table.num_chunks)) {}

  void walk(bool has_weight) {
    last_ = has_weight ? ActionKind::weight : ActionKind::backward;
    const auto& actions = table_.ranks[static_cast<size_t>(rank_)];
    for (size_t i = 0; i < actions.size(); ++i) {
      index_ = i;
      action_ = actions[i];
      ++of(action_.kind);
      if (of(action_.kind) > 1) fault("appears twice");
      check_place();
      check_before();
      if (action_.in_turns) check_pair(i + 1 < actions.size() ? actions[i + 1] : Action());
      track();
    }
    check_batches(actions);
    check_complete(has_weight);
  }

 private:
  using Counts = std::array<int, kKinds>;

  Counts& at(int microbatch, int chunk) {
    return count_[static_cast<size_t>(chunk) * static_cast<size_t>(table_.num_microbatches) +
                  static_cast<size_t>(microbatch)];
  }
  int& of(ActionKind kind) { return at(action_.microbatch, action_.chunk)[static_cast<size_t>(kind)]; }
  bool done(ActionKind kind) { return of(kind) > 0; }
  void fault(const std::string& rule) { report_.faults.push_back(describe(rank_, index_, action_) + ": " + rule); }

  int peer(int by, int chunk) const { return table_.placement().peer({rank_, chunk}, by); }
  int peer(int by) const { return peer(by, action_.chunk); }
  // True if `kind` is done for the adjacent stage `by`, or if another rank holds that stage.
  bool neighbour_done(ActionKind kind, int by) {
    const std::optional<StagePlace> other = table_.placement().neighbour({rank_, action_.chunk}, by);
    return !other || other->rank != rank_ || at(action_.microbatch, other->chunk)[static_cast<size_t>(kind)] > 0;
  }

  void check_place() {
    const ActionKind kind = action_.kind;
    if (table_.forward_only && (kind == ActionKind::backward || kind == ActionKind::weight ||
                                kind == ActionKind::send_backward || kind == ActionKind::recv_backward)) {
      fault("a forward-only table has no backward");
    }
    const bool before = kind == ActionKind::recv_forward || kind == ActionKind::send_backward;
    const bool after = kind == ActionKind::send_forward || kind == ActionKind::recv_backward;
    if (before && peer(-1) < 0) fault("no other rank is before this stage");
    if ((after || kind == ActionKind::free) && peer(1) < 0) fault("no other rank is after this stage");
    const int other = before ? peer(-1) : after ? peer(1) : -1;
    if (action_.peer != other) fault(base::concat("names peer ", action_.peer, ", which should be ", other));
    if (!is_p2p(kind) && action_.batch >= 0) fault("only sends and receives belong to a batch");
  }

  void check_before() {
    switch (action_.kind) {
      case ActionKind::forward:
        if (peer(-1) >= 0 && !done(ActionKind::recv_forward)) fault("its input has not been received");
        if (!neighbour_done(ActionKind::forward, -1)) fault("the chunk before has not run forward");
        break;
      case ActionKind::backward:
        if (!done(ActionKind::forward)) fault("its forward has not run");
        if (peer(1) >= 0 && !done(ActionKind::recv_backward)) fault("its gradient has not been received");
        if (!neighbour_done(ActionKind::backward, 1)) fault("the chunk after has not run backward");
        break;
      case ActionKind::weight:
      case ActionKind::send_backward:
        if (!done(ActionKind::backward)) fault("its backward has not run");
        break;
      case ActionKind::send_forward:
        if (!done(ActionKind::forward)) fault("its forward has not run");
        if (done(ActionKind::free)) fault("its output has been freed");
        break;
      case ActionKind::free:
        if (!done(ActionKind::send_forward)) fault("its output has not been sent");
        break;
      case ActionKind::recv_forward:
      case ActionKind::recv_backward:
        break;
    }
  }

  void check_pair(const Action& next) {
    if (action_.kind != ActionKind::forward || next.kind != ActionKind::backward)
      fault("only a forward advances in turns with the backward after it");
    else if (next.microbatch == action_.microbatch) fault("its partner is the backward of the same microbatch");
  }

  void track() {
    const auto rank = static_cast<size_t>(rank_);
    const ActionKind kind = action_.kind;
    if (kind == ActionKind::forward && !table_.forward_only) ++live_;
    if (kind == last_) --live_;
    if (is_recv(kind)) ++received_;
    if (kind == ActionKind::forward && peer(-1) >= 0) --received_;
    if (kind == ActionKind::backward && peer(1) >= 0) --received_;
    report_.peak_live_activations[rank] = std::max(report_.peak_live_activations[rank], live_);
    report_.peak_received[rank] = std::max(report_.peak_received[rank], received_);
  }

  void check_batches(const std::vector<Action>& actions) {
    std::set<int> seen;
    for (size_t i = 0; i < actions.size(); ++i) {
      const int batch = actions[i].batch;
      if (batch < 0 || (i > 0 && actions[i - 1].batch == batch)) continue;
      index_ = i;
      action_ = actions[i];
      if (!seen.insert(batch).second) fault(base::concat("batch ", batch, " is interrupted by other actions"));
    }
  }

  void check_complete(bool has_weight) {
    for (int chunk = 0; chunk < table_.num_chunks; ++chunk) {
      for (int microbatch = 0; microbatch < table_.num_microbatches; ++microbatch) {
        const auto need = [&](ActionKind kind) {
          if (at(microbatch, chunk)[static_cast<size_t>(kind)] == 0) {
            report_.faults.push_back(base::concat("rank ", rank_, ": ", action_name(kind), " of microbatch ",
                                                  microbatch, " chunk ", chunk, " is missing"));
          }
        };
        const bool crosses_before = peer(-1, chunk) >= 0, crosses_after = peer(1, chunk) >= 0;
        need(ActionKind::forward);
        if (crosses_before) need(ActionKind::recv_forward);
        if (crosses_after) need(ActionKind::send_forward);
        if (crosses_after) need(ActionKind::free);
        if (table_.forward_only) continue;
        need(ActionKind::backward);
        if (has_weight) need(ActionKind::weight);
        if (crosses_before) need(ActionKind::send_backward);
        if (crosses_after) need(ActionKind::recv_backward);
      }
    }
  }

  const PipelineTable& table_;
  int rank_;
  VerifyReport& report_;
  std::vector<Counts> count_;
  size_t index_ = 0;
  Action action_;
  ActionKind last_ = ActionKind::backward;  // its end frees a forward
  int live_ = 0, received_ = 0;
};

// Returns why the actions cannot be checked individually; "" if they can.
std::string shape_fault(const PipelineTable& table) {
  if (table.num_stages < 1 || table.num_chunks < 1 || table.num_microbatches < 1) {
    return base::concat(table.num_stages, " stages x ", table.num_chunks, " chunks x ", table.num_microbatches,
                        " microbatches: all must be positive");
  }
  if (table.ranks.size() != static_cast<size_t>(table.num_stages)) {
    return base::concat(table.ranks.size(), " lists of actions for ", table.num_stages, " ranks");
  }
  if (!table.live_activation_bounds.empty() && table.live_activation_bounds.size() != table.ranks.size()) {
    return base::concat(table.live_activation_bounds.size(), " live activation bounds for ", table.num_stages,
                        " ranks");
  }
  for (int rank = 0; rank < table.num_stages; ++rank) {
    const auto& actions = table.ranks[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const int kind = static_cast<int>(action.kind);
      if (kind < 0 || kind >= kKinds) return base::concat("rank ", rank, " action ", i, ": unknown kind ", kind);
      if (action.microbatch < 0 || action.microbatch >= table.num_microbatches || action.chunk < 0 ||
          action.chunk >= table.num_chunks) {
        return describe(rank, i, action) + ": the table has no such microbatch or chunk";
      }
    }
  }
  return "";
}

std::set<int> list_peers(const StagePlacement& placement, int rank) {
  std::set<int> peers;
  for (int chunk = 0; chunk < placement.chunks; ++chunk) {
    for (const int by : {-1, 1}) peers.insert(placement.peer({rank, chunk}, by));
  }
  peers.erase(-1);
  return peers;
}

// Receives must be posted in the order of the sends between two ranks: backends without message tags rely on it.
void check_pairs(const PipelineTable& table, VerifyReport& report) {
  const auto ids = [&](int rank, int peer, bool sends) {
    std::vector<int64_t> list;
    for (const Action& action : table.ranks[static_cast<size_t>(rank)]) {
      if ((sends ? is_send(action.kind) : is_recv(action.kind)) && action.peer == peer) {
        list.push_back(transfer_id(table, rank, action));
      }
    }
    return list;
  };
  for (int rank = 0; rank < table.num_stages; ++rank) {
    for (const int peer : list_peers(table.placement(), rank)) {
      const auto sent = ids(rank, peer, true), received = ids(peer, rank, false);
      if (sent == received) continue;
      const size_t common = std::min(sent.size(), received.size());
      size_t at = 0;
      while (at < common && sent[at] == received[at]) ++at;
      report.faults.push_back(base::concat("rank ", rank, " sends ", sent.size(), " tensors to rank ", peer,
                                           " that receives ", received.size(), "; they first differ at number ", at));
    }
  }
}

void check_progress(const PipelineTable& table, VerifyReport& report) {
  const std::vector<size_t> stuck = run_rendezvous(table);
  std::string where;
  for (int rank = 0; rank < table.num_stages; ++rank) {
    const auto& actions = table.ranks[static_cast<size_t>(rank)];
    const size_t at = stuck[static_cast<size_t>(rank)];
    if (at < actions.size()) where += (where.empty() ? "" : "; ") + describe(rank, at, actions[at]);
  }
  if (!where.empty()) report.faults.push_back("deadlock with rendezvous sends: " + where);
}

}  // namespace

VerifyReport inspect_table(const PipelineTable& table) {
  VerifyReport report;
  const std::string shape = shape_fault(table);
  if (!shape.empty()) {
    report.faults.push_back(shape);
    return report;
  }
  report.peak_live_activations.assign(table.ranks.size(), 0);
  report.peak_received.assign(table.ranks.size(), 0);
  const bool has_weight = table.splits_backward();
  for (int rank = 0; rank < table.num_stages; ++rank) RankChecker(table, rank, report).walk(has_weight);
  check_pairs(table, report);
  check_progress(table, report);
  for (size_t rank = 0; rank < table.live_activation_bounds.size(); ++rank) {
    if (report.peak_live_activations[rank] != table.live_activation_bounds[rank]) {
      report.faults.push_back(base::concat("rank ", rank, " holds ", report.peak_live_activations[rank],
                                           " activations at its peak, the schedule's bound is ",
                                           table.live_activation_bounds[rank]));
    }
  }
  return report;
}

VerifyReport verify(const PipelineTable& table) {
  VerifyReport report = inspect_table(table);
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, report.faults.size()); ++i) text += "\n  " + report.faults[i];
  if (report.faults.size() > kShown) text += base::concat("\n  and ", report.faults.size() - kShown, " more");
  MPX_CHECK(report.ok(), "plan", "pipeline table '", table.name, "' is wrong:", text);
  return report;
}

}  // namespace metroplex::plan
