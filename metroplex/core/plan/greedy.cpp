#include "plan/greedy.h"

#include <algorithm>
#include <limits>

namespace metroplex::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class GreedyScheduler {
 public:
  GreedyScheduler(const PipelineTable& shape, const ActionTimes& times, const GreedyRules& rules)
      : table_(shape), placement_(shape.placement()), times_(times), rules_(rules), ranks_(shape.ranks.size()) {
    const auto chunks = static_cast<size_t>(shape.num_chunks);
    for (Rank& rank : ranks_) rank.next.assign(3, std::vector<int>(chunks, 0));
    ends_.assign(3, std::vector<std::vector<double>>(
                        static_cast<size_t>(placement_.stages()),
                        std::vector<double>(static_cast<size_t>(shape.num_microbatches), kNever)));
  }

  std::optional<PipelineTable> run() {
    const int kinds = table_.forward_only ? 1 : 3;
    std::vector<Choice> choices;  // per rank; changes if the rank or the rank of an adjacent stage commits
    for (int rank = 0; rank < table_.num_stages; ++rank) choices.push_back(choose(rank));
    for (int left = kinds * placement_.stages() * table_.num_microbatches; left > 0; --left) {
      const Choice first =
          *std::min_element(choices.begin(), choices.end(),
                            [](const Choice& left, const Choice& right) { return left.start < right.start; });
      if (first.start == kNever) return std::nullopt;
      commit(first);
      const StagePlace own{first.rank, first.action.chunk};
      for (const int by : {-1, 0, 1}) {
        const auto place = placement_.neighbour(own, by);
        if (place) choices[static_cast<size_t>(place->rank)] = choose(place->rank);
      }
    }
    return std::move(table_);
  }

 private:
  struct Rank {
    double free = 0;
    int live = 0;
    std::vector<std::vector<int>> next;  // [kind][chunk]: next microbatch
  };
  struct Choice {
    int rank = 0;
    Action action;
    double start = kNever;
  };

  double& find_end(ActionKind kind, int stage, int microbatch) {
    return ends_[static_cast<size_t>(kind)][static_cast<size_t>(stage)][static_cast<size_t>(microbatch)];
  }

  // Returns when the inputs of the next action of this kind and chunk have arrived; never if they do not exist yet.
  double ready(int rank, ActionKind kind, int chunk) {
    const int m = ranks_[static_cast<size_t>(rank)].next[static_cast<size_t>(kind)][static_cast<size_t>(chunk)];
    if (m >= table_.num_microbatches || (table_.forward_only && kind != ActionKind::forward)) return kNever;
    const StagePlace own{rank, chunk};
    const int stage = placement_.stage_of(own);
    if (kind == ActionKind::weight) return find_end(ActionKind::backward, stage, m);
    const bool forward = kind == ActionKind::forward;
    const double before = forward ? 0 : find_end(ActionKind::forward, stage, m);
    const auto other = placement_.neighbour(own, forward ? -1 : 1);
    if (!other) return before;
    const double arrival = find_end(kind, placement_.stage_of(*other), m) + (other->rank == rank ? 0 : times_.p2p);
    return std::max(before, arrival);
  }

  // True if the next forward of this chunk exceeds the rank's limit.
  bool is_full(int rank, int chunk) const {
    if (table_.forward_only) return false;
    const Rank& own = ranks_[static_cast<size_t>(rank)];
    const std::vector<int>& forwards = own.next[static_cast<size_t>(ActionKind::forward)];
    int needed = own.live + 1;
    // Each microbatch that is ahead in this chunk, with the next one, still needs every later chunk.
    for (int later = chunk + 1; rules_.reserves_room && later < table_.num_chunks; ++later)
      needed += forwards[static_cast<size_t>(chunk)] + 1 - forwards[static_cast<size_t>(later)];
    return needed > rules_.live_limits[static_cast<size_t>(rank)];
  }

  // Actions in the order of their urgency: backwards, then forwards and weights, later chunks first.
  Choice choose(int rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    const ActionKind kinds[] = {ActionKind::backward,
                                rules_.forward_before_weight ? ActionKind::forward : ActionKind::weight,
                                rules_.forward_before_weight ? ActionKind::weight : ActionKind::forward};
    Choice best;
    double urgent = kNever;  // arrival of the next forward or backward
    for (const ActionKind kind : kinds) {
      for (int chunk = table_.num_chunks - 1; chunk >= 0; --chunk) {
        if (kind == ActionKind::forward && is_full(rank, chunk)) continue;
        const double start = std::max(own.free, ready(rank, kind, chunk));
        if (start == kNever) continue;
        if (kind != ActionKind::weight) urgent = std::min(urgent, start);
        if (start < best.start) {
          const int m = own.next[static_cast<size_t>(kind)][static_cast<size_t>(chunk)];
          best = {rank, {kind, m, chunk, -1, -1}, start};
        }
      }
    }
    if (best.action.kind == ActionKind::weight && best.start != kNever && urgent != kNever) {
      const double time = times_.of(ActionKind::weight, placement_.stage_of({rank, best.action.chunk}));
      if (urgent < best.start + rules_.patience * time) return choose_urgent(rank);
    }
    return best;
  }

  Choice choose_urgent(int rank) {
    const Rank& own = ranks_[static_cast<size_t>(rank)];
    Choice best;
    for (const ActionKind kind : {ActionKind::backward, ActionKind::forward}) {
      for (int chunk = table_.num_chunks - 1; chunk >= 0; --chunk) {
        if (kind == ActionKind::forward && is_full(rank, chunk)) continue;
        const double start = std::max(own.free, ready(rank, kind, chunk));
        const int m = own.next[static_cast<size_t>(kind)][static_cast<size_t>(chunk)];
        if (start < best.start) best = {rank, {kind, m, chunk, -1, -1}, start};
      }
    }
    return best;
  }

  void commit(const Choice& choice) {
    const Action& action = choice.action;
    Rank& own = ranks_[static_cast<size_t>(choice.rank)];
    const int stage = placement_.stage_of({choice.rank, action.chunk});
    own.free = choice.start + times_.of(action.kind, stage);
    find_end(action.kind, stage, action.microbatch) = own.free;
    ++own.next[static_cast<size_t>(action.kind)][static_cast<size_t>(action.chunk)];
    own.live += action.kind == ActionKind::forward ? 1 : action.kind == ActionKind::weight ? -1 : 0;
    table_.ranks[static_cast<size_t>(choice.rank)].push_back(action);
  }

  PipelineTable table_;
  StagePlacement placement_;
  const ActionTimes& times_;
  const GreedyRules& rules_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<std::vector<double>>> ends_;  // [kind][stage][microbatch]
};

}  // namespace

std::optional<PipelineTable> greedy_order(const PipelineTable& shape, const ActionTimes& times,
                                          const GreedyRules& rules) {
  return GreedyScheduler(shape, times, rules).run();
}

PipelineTable forward_order(const PipelineTable& shape) { return GreedyScheduler(shape, {}, {}).run().value(); }

std::optional<PipelineTable> shortest_greedy_order(const PipelineTable& shape, const ActionTimes& times,
                                                   GreedyRules rules) {
  std::optional<PipelineTable> best;
  double shortest = kNever;
  for (const bool forward_before_weight : {true, false}) {
    for (const double patience : {0.0, 0.5, 1.0}) {
      rules.forward_before_weight = forward_before_weight;
      rules.patience = patience;
      std::optional<PipelineTable> order = greedy_order(shape, times, rules);
      if (!order) continue;
      const double length = step_length(*order, times);
      if (length < shortest) shortest = length, best = std::move(order);
    }
  }
  if (best || rules.reserves_room) return best;
  rules.reserves_room = true;
  return shortest_greedy_order(shape, times, rules);
}

}  // namespace metroplex::plan
