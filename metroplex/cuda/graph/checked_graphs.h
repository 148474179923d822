// Graphs that check captures on a machine without a GPU: each graph is captured again in every run instead of being
// replayed, and what is wrong in a capture, or differs between two, becomes a finding. A drop-in for any GraphDevice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/graph/guarded_arena.h"
#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

class CheckedGraphs final : public GraphDevice {
 public:
  // compared: every capture is compared with the first one of its graph and form. guarded: captures run in an arena
  // of protected pages (guarded_arena.h); one such device at a time, for one rank.
  enum class Way { compared, guarded };
  explicit CheckedGraphs(Way way);
  ~CheckedGraphs() override;

  // The guarded pool for tensors that exist before a capture; null unless guarded.
  std::shared_ptr<TapePool> outside() const;

  std::shared_ptr<GraphPool> make_pool() override;
  std::unique_ptr<Graph> make_graph(std::shared_ptr<GraphPool> pool) override;
  TapeRecorder* recorder() override { return &recorder_; }
  void run_on_capture_stream(const std::function<void()>& work) override { work(); }

  // Later captures have inputs of another form and are compared among themselves. findings() no longer covers earlier
  // ones, whose inputs may be freed.
  void next_form() { ++form_; }
  // Of all captures of this form; sharing of pools is checked on the first one. `replays`: the order in which the
  // graphs (by index of creation) will be replayed; empty: in the order of capture, repeatedly.
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
