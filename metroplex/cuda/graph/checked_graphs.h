// Graphs to find out, on a laptop, what is wrong with a capture: each is captured again in every run instead of being
// replayed, and what a capture shows, or differs from the one before, is a finding. Whatever is written for a
// GraphDevice can be handed one of these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/graph/guarded_arena.h"
#include "cuda/graph/tape_calls.h"

namespace metroplex::cuda {

class CheckedGraphs final : public GraphDevice {
 public:
  // compared: every capture is compared with the first of its graph (and form). guarded: they run in a closed arena
  // (guarded_arena.h), one such device at a time, for one rank.
  enum class Way { compared, guarded };
  explicit CheckedGraphs(Way way);
  ~CheckedGraphs() override;

  // Memory for what is there before a capture, to be guarded too; null where nothing is.
  std::shared_ptr<TapePool> outside() const;

  std::shared_ptr<GraphPool> make_pool() override;
  std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) override;
  TapeRecorder* recorder() override { return &recorder_; }
  void run_on_capture_stream(const std::function<void()>& work) override { work(); }

  // What is captured from here on has another form, of other inputs, and is compared among itself; of what was
  // captured before, whose inputs may go, findings tells no more.
  void next_form() { ++form_; }
  // Of all captures of this form; how graphs share a pool is looked at in the first one. `replays`: in which order
  // the graphs, counted as they were made, will be replayed; where it is empty, as they were captured, again and
  // again.
  std::vector<Finding> findings(std::vector<size_t> replays = {}) const;
  // Communication of the latest capture of each graph, one graph behind the other.
  RankCalls calls() const;
  // Captures of each graph.
  std::vector<size_t> captures() const;
  // Operations of its latest capture.
  std::vector<size_t> operations() const;

 private:
  class Pool;
  class OneGraph;
  struct Captured {
    std::shared_ptr<TapePool> pool;
    Tape tape;
    size_t form;
  };
  struct Captures {  // of one graph
    std::shared_ptr<Pool> pool;
    std::vector<Captured> all;
  };

  std::vector<Finding> check_shared_pools(const std::vector<size_t>& replays) const;

  TapeRecorder recorder_;
  std::unique_ptr<GuardedArena> arena_;
  std::vector<std::unique_ptr<Captures>> graphs_;
  std::vector<size_t> order_;  // graphs by their first capture
  size_t form_ = 0;
};

}  // namespace metroplex::cuda
