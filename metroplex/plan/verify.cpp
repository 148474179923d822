#include "plan/verify.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "plan/rendezvous.h"

namespace metroplex::plan {
namespace {

constexpr int kKinds = 8;

std::string describe(int rank, size_t index, const Action& action) {
  return base::concat("rank ", rank, " action ", index, ", ", action_name(action.kind), " of microbatch ",
                      action.microbatch, " chunk ", action.chunk);
}

// Walks one rank's list with what has happened so far to every (microbatch, chunk).
class RankChecker {
 public:
  RankChecker(const PipelineTable& table, int rank, VerifyReport& report)
      : table_(table),
        rank_(rank),
        report_(report),
        count_(static_cast<size_t>(table.num_microbatches) * static_cast<size_t>(table.num_chunks)) {}

  void walk(bool has_weight) {
    const auto& actions = table_.ranks[static_cast<size_t>(rank_)];
    for (size_t i = 0; i < actions.size(); ++i) {
      index_ = i;
      action_ = actions[i];
      ++of(action_.kind);
      if (of(action_.kind) > 1) fault("is there twice");
      check_place();
      check_before();
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
  bool done_in_chunk(ActionKind kind, int chunk) {
    return at(action_.microbatch, chunk)[static_cast<size_t>(kind)] > 0;
  }
  void fault(const std::string& rule) { report_.faults.push_back(describe(rank_, index_, action_) + ": " + rule); }

  bool crosses_before(int chunk) const { return table_.num_stages > 1 && !table_.is_first_stage(rank_, chunk); }
  bool crosses_after(int chunk) const { return table_.num_stages > 1 && !table_.is_last_stage(rank_, chunk); }

  // Does this kind exist at this stage, and with this peer?
  void check_place() {
    const ActionKind kind = action_.kind;
    if (table_.forward_only && (kind == ActionKind::backward || kind == ActionKind::weight ||
                                kind == ActionKind::send_backward || kind == ActionKind::recv_backward)) {
      fault("a forward-only table has no backward");
    }
    const bool before = kind == ActionKind::recv_forward || kind == ActionKind::send_backward;
    const bool after = kind == ActionKind::send_forward || kind == ActionKind::recv_backward;
    if (before && !crosses_before(action_.chunk)) fault("no other rank is before this stage");
    if ((after || kind == ActionKind::free) && !crosses_after(action_.chunk)) {
      fault("no other rank is after this stage");
    }
    const int peer = before ? table_.previous_rank(rank_) : after ? table_.next_rank(rank_) : -1;
    if (action_.peer != peer) fault(base::concat("names peer ", action_.peer, ", which should be ", peer));
    if (!is_p2p(kind) && action_.batch >= 0) fault("only sends and receives belong to a batch");
  }

  // Has everything that it needs happened on this rank?
  void check_before() {
    const int chunk = action_.chunk;
    switch (action_.kind) {
      case ActionKind::forward:
        if (crosses_before(chunk) && !done(ActionKind::recv_forward)) fault("its input has not been received");
        if (table_.num_stages == 1 && chunk > 0 && !done_in_chunk(ActionKind::forward, chunk - 1)) {
          fault("the chunk before has not run forward");
        }
        break;
      case ActionKind::backward:
        if (!done(ActionKind::forward)) fault("its forward has not run");
        if (crosses_after(chunk) && !done(ActionKind::recv_backward)) fault("its gradient has not been received");
        if (table_.num_stages == 1 && chunk + 1 < table_.num_chunks &&
            !done_in_chunk(ActionKind::backward, chunk + 1)) {
          fault("the chunk after has not run backward");
        }
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

  void track() {
    const auto rank = static_cast<size_t>(rank_);
    const ActionKind kind = action_.kind;
    if (kind == ActionKind::forward && !table_.forward_only) ++live_;
    if (kind == ActionKind::backward) --live_;
    if (is_recv(kind)) ++received_;
    if (kind == ActionKind::forward && crosses_before(action_.chunk)) --received_;
    if (kind == ActionKind::backward && crosses_after(action_.chunk)) --received_;
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
      if (!seen.insert(batch).second) fault(base::concat("batch ", batch, " is torn apart by other actions"));
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
        need(ActionKind::forward);
        if (crosses_before(chunk)) need(ActionKind::recv_forward);
        if (crosses_after(chunk)) need(ActionKind::send_forward);
        if (crosses_after(chunk)) need(ActionKind::free);
        if (table_.forward_only) continue;
        need(ActionKind::backward);
        if (has_weight) need(ActionKind::weight);
        if (crosses_before(chunk)) need(ActionKind::send_backward);
        if (crosses_after(chunk)) need(ActionKind::recv_backward);
      }
    }
  }

  const PipelineTable& table_;
  int rank_;
  VerifyReport& report_;
  std::vector<Counts> count_;
  size_t index_ = 0;
  Action action_;
  int live_ = 0, received_ = 0;
};

// "" or what makes the lists impossible to walk.
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

// Between two ranks everything must be received in the order in which it was sent: a backend without tags relies
// on it.
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
    std::set<int> peers{table.next_rank(rank), table.previous_rank(rank)};
    for (const int peer : peers) {
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
  if (!where.empty()) report.faults.push_back("deadlock with rendezvous sends, waiting for ever: " + where);
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
  bool has_weight = false;
  for (const auto& actions : table.ranks) {
    for (const Action& action : actions) has_weight = has_weight || action.kind == ActionKind::weight;
  }
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
