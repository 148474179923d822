// Graphs of the CPU: tapes with separate or shared pools.
#pragma once

#include "graph/graph.h"
#include "graph/tape.h"
#include "graph/tape_pool.h"
#include "graph/tape_recorder.h"

namespace metroplex::graph {

class TapeGraph final : public Graph {
 public:
  TapeGraph(TapeRecorder& recorder, std::shared_ptr<TapePool> pool) : recorder_(recorder), pool_(std::move(pool)) {}
  void begin() override;
  void end() override;
  void abandon() noexcept override;
  bool runs_while_capturing() const override { return true; }
  bool captured() const override { return captured_; }
  void replay() override;
  void reset() override;
  GraphSize size() const override { return tape_.size(); }

  const Tape& tape() const { return tape_; }
  TapePool& pool() const { return *pool_; }

 private:
  TapeRecorder& recorder_;
  std::shared_ptr<TapePool> pool_;
  Tape tape_;
  bool captured_ = false;
};

class TapeDevice final : public GraphDevice {
 public:
  std::shared_ptr<GraphPool> make_pool() override { return std::make_shared<TapePool>(); }
  std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) override;
  TapeRecorder* recorder() override { return &recorder_; }
  void run_on_capture_stream(const std::function<void()>& work) override { work(); }

 private:
  TapeRecorder recorder_;
};

}  // namespace metroplex::graph
