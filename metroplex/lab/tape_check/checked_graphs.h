// Graphs that check captures on a machine without a GPU. Each graph is captured again in every run instead of being
// replayed. Errors in a capture, and differences between two captures, become diagnostics (`Finding`). A drop-in
// replacement for any GraphDevice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tape_check/guarded_arena.h"
#include "tape_check/tape_findings.h"

namespace metroplex::tape_check {

class CheckedGraphs final : public graph::GraphDevice {
 public:
  // compared: every capture is compared with the first capture of its graph and form. guarded: captures run in an
  // arena of protected pages (guarded_arena.h). Only one guarded device may exist at a time, for one rank.
  enum class Way { compared, guarded };
  explicit CheckedGraphs(Way way);
  ~CheckedGraphs() override;

  // The guarded pool for tensors that exist before a capture; null unless guarded.
  std::shared_ptr<graph::TapePool> outside() const;

  std::shared_ptr<graph::GraphPool> make_pool() override;
  std::unique_ptr<graph::Graph> make_graph(std::shared_ptr<graph::GraphPool> pool) override;
  graph::TapeRecorder* recorder() override { return &recorder_; }
  void run_on_capture_stream(const std::function<void()>& work) override { work(); }

  // Starts a new form, whose captures are compared among themselves. findings() no longer covers earlier captures,
  // whose inputs may be freed.
  void next_form() { ++form_; }
  // Diagnostics of all captures of the current form; pool sharing is checked for the first form only. `replays`: the
  // replay order as graph indices in order of creation; empty: the capture order, repeated.
  std::vector<Finding> findings(std::vector<size_t> replays = {}) const;
  // Communication calls of the latest capture of each graph, concatenated.
  RankCalls calls() const;
  std::vector<size_t> captures() const;
  std::vector<size_t> operations() const;

 private:
  class Pool;
  class OneGraph;
  struct Captured {
    std::shared_ptr<graph::TapePool> pool;
    graph::Tape tape;
    size_t form;
  };
  struct Captures {  // of one graph
    std::shared_ptr<Pool> pool;
    std::vector<Captured> all;
  };

  std::vector<Finding> check_shared_pools(const std::vector<size_t>& replays) const;

  graph::TapeRecorder recorder_;
  std::unique_ptr<GuardedArena> arena_;
  std::vector<std::unique_ptr<Captures>> graphs_;
  std::vector<size_t> order_;  // graphs in the order of their first capture
  size_t form_ = 0;
};

}  // namespace metroplex::tape_check
