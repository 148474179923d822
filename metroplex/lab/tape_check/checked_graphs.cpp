#include "tape_check/checked_graphs.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "tape_check/tape_findings.h"

namespace metroplex::tape_check {

// Within a round of captures, graphs share memory as their replays would. Every round starts with an empty pool.
class CheckedGraphs::Pool final : public graph::GraphPool {
 public:
  explicit Pool(std::shared_ptr<graph::TapePool> only) : only_(std::move(only)) {}
  std::shared_ptr<graph::TapePool> round(size_t number) {
    if (only_) return only_;
    while (rounds_.size() <= number) rounds_.push_back(std::make_shared<graph::TapePool>());
    return rounds_[number];
  }
  Bytes bytes() const override {
    if (only_) return only_->bytes();
    return rounds_.empty() ? Bytes() : rounds_.back()->bytes();
  }

 private:
  std::shared_ptr<graph::TapePool> only_;
  std::vector<std::shared_ptr<graph::TapePool>> rounds_;
};

class CheckedGraphs::OneGraph final : public graph::Graph {
 public:
  OneGraph(CheckedGraphs& device, size_t number) : device_(device), number_(number) {}
  void begin() override {
    Captures& mine = captures();
    if (mine.all.empty()) device_.order_.push_back(number_);
    if (device_.arena_) device_.arena_->begin();
    else device_.recorder_.begin(pool(), /*strict=*/false);
  }
  void end() override {
    const std::shared_ptr<graph::TapePool> from = pool();
    captures().all.push_back({from, device_.arena_ ? device_.arena_->end() : device_.recorder_.end(), device_.form_});
  }
  void abandon() noexcept override {
    if (device_.arena_) device_.arena_->abandon();
    else device_.recorder_.abandon();
  }
  bool runs_while_capturing() const override { return true; }
  bool captured() const override { return false; }
  void replay() override { MPX_ASSERT(false, "a graph that is checked is never replayed"); }
  void reset() override {}
  graph::GraphSize size() const override {
    return captures().all.empty() ? graph::GraphSize() : captures().all.back().tape.size();
  }

 private:
  Captures& captures() const { return *device_.graphs_[number_]; }
  std::shared_ptr<graph::TapePool> pool() const { return captures().pool->round(captures().all.size()); }

  CheckedGraphs& device_;
  size_t number_;
};

CheckedGraphs::CheckedGraphs(Way way) {
  if (way == Way::guarded) arena_ = std::make_unique<GuardedArena>(recorder_);
}
CheckedGraphs::~CheckedGraphs() = default;

std::shared_ptr<graph::TapePool> CheckedGraphs::outside() const { return arena_ ? arena_->outside() : nullptr; }

std::shared_ptr<graph::GraphPool> CheckedGraphs::make_pool() {
  return std::make_shared<Pool>(arena_ ? arena_->inside() : nullptr);
}

std::unique_ptr<graph::Graph> CheckedGraphs::make_graph(std::shared_ptr<graph::GraphPool> pool) {
  auto mine = std::dynamic_pointer_cast<Pool>(std::move(pool));
  MPX_ASSERT(mine, "a pool of another device");
  graphs_.push_back(std::make_unique<Captures>(Captures{std::move(mine), {}}));
  return std::make_unique<OneGraph>(*this, graphs_.size() - 1);
}

std::vector<Finding> CheckedGraphs::findings(std::vector<size_t> replays) const {
  std::vector<Finding> found;
  const auto add = [&](std::vector<Finding> more) {
    found.insert(found.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  for (const auto& graph : graphs_) {
    const bool alone = std::count_if(graphs_.begin(), graphs_.end(),
                                     [&](const auto& other) { return other->pool == graph->pool; }) == 1;
    for (const Captured& capture : graph->all) {
      if (capture.form != form_) continue;
      add(check_tape({capture.tape, *capture.pool}, alone));
      const Captured& first = *std::find_if(graph->all.begin(), graph->all.end(),
                                            [&](const Captured& other) { return other.form == capture.form; });
      if (&capture != &first && !arena_) add(compare({first.tape, *first.pool}, {capture.tape, *capture.pool}));
    }
  }
  if (arena_) add(arena_->findings());
  else if (form_ == 0) add(check_shared_pools(replays));
  return found;
}

std::vector<Finding> CheckedGraphs::check_shared_pools(const std::vector<size_t>& replays) const {
  std::vector<Replayed> captured;
  std::vector<size_t> at(graphs_.size(), 0), again;
  std::set<const graph::TapePool*> pools;
  for (const size_t graph : order_) {
    const Captured& first = graphs_[graph]->all.front();
    at[graph] = captured.size();
    captured.push_back({base::concat(graph), &first.tape, {}});
    pools.insert(first.pool.get());
  }
  for (const size_t graph : replays) again.push_back(at.at(graph));
  for (size_t round = 0; round < 2 && replays.empty(); ++round) {
    for (size_t i = 0; i < captured.size(); ++i) again.push_back(i);
  }
  return check_replays(captured, again, {pools.begin(), pools.end()});
}

RankCalls CheckedGraphs::calls() const {
  RankCalls all;
  all.groups = recorder_.groups();
  for (const auto& graph : graphs_) {
    if (graph->all.empty()) continue;
    for (TapeCall& call : list_calls(graph->all.back().tape)) all.calls.push_back(std::move(call));
  }
  return all;
}

std::vector<size_t> CheckedGraphs::captures() const {
  std::vector<size_t> counts;
  for (const auto& graph : graphs_) counts.push_back(graph->all.size());
  return counts;
}

std::vector<size_t> CheckedGraphs::operations() const {
  std::vector<size_t> counts;
  for (const auto& graph : graphs_)
    counts.push_back(graph->all.empty() ? 0 : graph->all.back().tape.operations.size());
  return counts;
}

}  // namespace metroplex::tape_check
