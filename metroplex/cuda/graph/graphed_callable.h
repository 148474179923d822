// A callable over static tensors: runs eagerly at first, then is captured, then replayed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/graph/graph.h"

namespace metroplex::cuda {

class GraphedCallable {
 public:
  using Tensors = std::vector<at::Tensor>;
  // Reads its inputs where they are and returns tensors, some of which may be undefined. In a replay it is not
  // called: what it does on the host beside issuing work happens up to the capture only.
  using Callable = std::function<Tensors(const Tensors& inputs)>;
  struct Options {
    int64_t warmup = 3;               // calls before the one that captures, run as they are
    std::shared_ptr<GraphPool> pool;  // null: one of its own
    // Among the ranks that capture together, before a capture and after it: a capture that waits for a peer which has
    // not begun its own would time out. May be empty.
    std::function<void()> barrier;
  };

  // `inputs` are the static ones, whose memory the caller does not give to anybody else; they are copied into.
  GraphedCallable(GraphDevice& device, Callable callable, Tensors inputs, Options options);

  // Runs it once over the values of `inputs`, of the shapes and types of the static ones (base::Error "cuda graph"
  // where they are not). One that is the static tensor itself is not copied. The results lie where those of the
  // capture lay, once there is one: the next call overwrites them.
  const Tensors& operator()(const Tensors& inputs);

  const Tensors& inputs() const { return inputs_; }
  bool captured() const { return graph_->captured(); }
  bool capturing() const { return capturing_; }  // its callable is running for a capture
  GraphSize size() const { return graph_->size(); }
  GraphPool& pool() const { return *pool_; }
  // Forgets graph and results; the next call captures again.
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

}  // namespace metroplex::cuda
