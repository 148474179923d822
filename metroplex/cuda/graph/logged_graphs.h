// Tapes that are captured once and replayed as ever, and remember in which order: whether graphs that share pools, as
// those of live sets do, found in every replay what they found at the capture.
#pragma once

#include <memory>
#include <vector>

#include "cuda/graph/tape_findings.h"
#include "cuda/graph/tape_graph.h"

namespace metroplex::cuda {

class LoggedGraphs final : public GraphDevice {
 public:
  // `recorder` is told of what is captured, and outlives it.
  explicit LoggedGraphs(TapeRecorder& recorder) : recorder_(recorder) {}

  std::shared_ptr<GraphPool> make_pool() override { return std::make_shared<TapePool>(); }
  std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) override;
  TapeRecorder* recorder() override { return &recorder_; }
  void run_aside(const std::function<void()>& work) override { work(); }

  // Of what each tape shows, and of the replays so far; while the graphs live. A graph that is captured again counts
  // from then on.
  std::vector<Finding> findings() const;
  size_t replays() const { return replays_.size(); }

 private:
  class Logged;
  TapeRecorder& recorder_;
  std::vector<const Logged*> captured_;  // in order
  std::vector<const Logged*> replays_;
};

}  // namespace metroplex::cuda
