#include "plan/pipeline_table.h"

#include <unordered_map>

namespace metroplex::plan {

int64_t transfer_id(const PipelineTable& table, int rank, const Action& action) {
  // A border is numbered by the stage before it.
  const bool forward = action.kind == ActionKind::send_forward || action.kind == ActionKind::recv_forward;
  const bool after = action.kind == ActionKind::recv_forward || action.kind == ActionKind::send_backward;
  const int64_t border = table.placement().stage_of({rank, action.chunk}) - (after ? 1 : 0);
  return (border * table.num_microbatches + action.microbatch) * 2 + (forward ? 0 : 1);
}

size_t call_end(const std::vector<Action>& actions, size_t begin) {
  size_t end = begin + 1;
  const int batch = actions[begin].batch;
  while (batch >= 0 && end < actions.size() && is_p2p(actions[end].kind) && actions[end].batch == batch) ++end;
  return end;
}

namespace {

class Rendezvous {
 public:
  explicit Rendezvous(const PipelineTable& table)
      : table_(table), at_(table.ranks.size(), 0), open_(table.ranks.size(), 0) {}

  std::vector<size_t> run() {
    std::vector<int> ready;
    for (int rank = 0; rank < static_cast<int>(at_.size()); ++rank) ready.push_back(rank);
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      advance(rank, ready);
    }
    return at_;
  }

 private:
  // Runs `rank` up to its next call and matches it with ranks that already wait there.
  void advance(int rank, std::vector<int>& ready) {
    const auto r = static_cast<size_t>(rank);
    const auto& actions = table_.ranks[r];
    while (open_[r] == 0 && at_[r] < actions.size()) {
      if (!is_p2p(actions[at_[r]].kind)) {
        ++at_[r];
        continue;
      }
      const size_t begin = at_[r], end = call_end(actions, begin);
      open_[r] = static_cast<int>(end - begin);
      for (size_t i = begin; i < end; ++i) post(rank, actions[i], ready);
      if (open_[r] == 0) at_[r] = end;
    }
  }

  void post(int rank, const Action& action, std::vector<int>& ready) {
    const int64_t id = transfer_id(table_, rank, action);
    const auto waiting = waiting_.find(id);
    if (waiting == waiting_.end()) {
      waiting_.emplace(id, Side{rank, is_send(action.kind)});
      return;
    }
    const Side other = waiting->second;
    const bool meets = other.sends != is_send(action.kind) && other.rank == action.peer;
    if (!meets) return;  // two sends or a third rank: this transfer can never match
    waiting_.erase(waiting);
    --open_[static_cast<size_t>(rank)];
    const auto o = static_cast<size_t>(other.rank);
    if (--open_[o] == 0 && other.rank != rank) {
      at_[o] = call_end(table_.ranks[o], at_[o]);
      ready.push_back(other.rank);
    }
  }

  struct Side {
    int rank;
    bool sends;
  };
  const PipelineTable& table_;
  std::vector<size_t> at_;
  std::vector<int> open_;  // unmatched transfers of the current call
  std::unordered_map<int64_t, Side> waiting_;
};

}  // namespace

std::vector<size_t> run_rendezvous(const PipelineTable& table) { return Rendezvous(table).run(); }

}  // namespace metroplex::plan
