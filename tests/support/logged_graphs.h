// Tapes that are captured once, replayed in any number, and log the replay order. Tests check that graphs sharing
// pools (graph instances) read in every replay the values that they read at capture.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <vector>

#include "base/error.h"
#include "tape_check/tape_findings.h"
#include "graph/tape_graph.h"

namespace metroplex::graph {

class LoggedGraphs final : public GraphDevice {
 public:
  // `recorder` records the captured operations and must outlive this object.
  explicit LoggedGraphs(TapeRecorder& recorder) : recorder_(recorder) {}

  std::shared_ptr<GraphPool> make_pool() override { return std::make_shared<TapePool>(); }
  std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) override;
  TapeRecorder* recorder() override { return &recorder_; }
  void run_on_capture_stream(const std::function<void()>& work) override { work(); }

  // Diagnostics of each tape and of the replays so far, for graphs that still exist. A graph that is captured again
  // counts from its last capture.
  std::vector<tape_check::Finding> findings() const;
  size_t replays() const { return replays_.size(); }

 private:
  class LoggedGraph;
  TapeRecorder& recorder_;
  std::vector<const LoggedGraph*> captured_;  // in capture order
  std::vector<const LoggedGraph*> replays_;
};

class LoggedGraphs::LoggedGraph final : public Graph {
 public:
  LoggedGraph(LoggedGraphs& device, std::shared_ptr<TapePool> pool)
      : device_(device), graph_(device.recorder_, std::move(pool)) {}
  void begin() override { graph_.begin(); }
  void end() override {
    graph_.end();
    std::erase(device_.captured_, this);
    std::erase(device_.replays_, this);
    device_.captured_.push_back(this);
  }
  void abandon() noexcept override { graph_.abandon(); }
  bool runs_while_capturing() const override { return true; }
  bool captured() const override { return graph_.captured(); }
  void replay() override {
    graph_.replay();
    device_.replays_.push_back(this);
  }
  void reset() override { graph_.reset(); }
  GraphSize size() const override { return graph_.size(); }

  const Tape& tape() const { return graph_.tape(); }
  TapePool& pool() const { return graph_.pool(); }

 private:
  LoggedGraphs& device_;
  TapeGraph graph_;
};

inline std::unique_ptr<Graph> LoggedGraphs::make_graph(std::shared_ptr<GraphPool> pool) {
  auto tape_pool = std::dynamic_pointer_cast<TapePool>(std::move(pool));
  MPX_ASSERT(tape_pool, "a pool of another device");
  return std::make_unique<LoggedGraph>(*this, std::move(tape_pool));
}

inline std::vector<tape_check::Finding> LoggedGraphs::findings() const {
  std::vector<tape_check::Finding> found;
  const auto add = [&](std::vector<tape_check::Finding> more) {
    found.insert(found.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  std::vector<tape_check::Replayed> graphs;
  std::vector<size_t> order;
  std::set<const TapePool*> pools;
  for (const LoggedGraph* graph : captured_) {
    add(tape_check::check_tape({graph->tape(), graph->pool()}, /*alone=*/false));
    graphs.push_back({base::concat(graphs.size()), &graph->tape(), {}});
    pools.insert(&graph->pool());
  }
  for (const LoggedGraph* graph : replays_)
    order.push_back(static_cast<size_t>(std::find(captured_.begin(), captured_.end(), graph) - captured_.begin()));
  add(tape_check::check_replays(graphs, order, {pools.begin(), pools.end()}));
  return found;
}

}  // namespace metroplex::graph
