// A callable over static tensors: runs eagerly at first, then is captured, then replayed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace metroplex::graph {

class GraphedCallable {
 public:
  using Tensors = std::vector<at::Tensor>;
  // Reads its inputs in place and returns tensors, some of which may be undefined. A replay does not call it: its
  // host side effects happen only up to the capture.
  using Callable = std::function<Tensors(const Tensors& inputs)>;
  struct Options {
    int64_t warmup = 3;               // eager calls before the capturing call
    std::shared_ptr<GraphPool> pool;  // null: a separate pool
    // Runs before and after a capture, among the ranks that capture together. Without it, a capture could time out
    // while waiting for a peer that has not started its capture. May be empty.
    std::function<void()> barrier;
  };

  // `inputs` are the static inputs, whose memory the caller must reserve for this object; values are copied into
  // them.
  GraphedCallable(GraphDevice& device, Callable callable, Tensors inputs, Options options);

  // Runs the callable once on `inputs`, which must have the shapes and types of the static inputs (otherwise
  // base::Error "cuda graph"). A tensor that is the static input itself is not copied. After the capture, results
  // are in the capture's memory, and the next call overwrites them.
  const Tensors& operator()(const Tensors& inputs);

  const Tensors& inputs() const { return inputs_; }
  bool captured() const { return graph_->captured(); }
  bool capturing() const { return capturing_; }  // the callable is running for a capture
  GraphSize size() const { return graph_->size(); }
  GraphPool& pool() const { return *pool_; }
  // Drops graph and results; the next call captures again.
  void reset();

 private:
  GraphDevice& device_;
  Callable callable_;
  Tensors inputs_, outputs_;
  Options options_;
  std::shared_ptr<GraphPool> pool_;
  std::unique_ptr<Graph> graph_;
  int64_t calls_ = 0;
  bool capturing_ = false;
};

}  // namespace metroplex::graph
