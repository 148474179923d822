// An island whose forward and backward are one graph each, for one live set (plan/graph_plan.h). Inputs and incoming
// gradients have static buffers; outputs and saved activations are in the set's memory pool. The first run captures;
// every later one copies its inputs in and replays, and the layers' code is not called again. A replay cannot call
// listeners of a parameter's uses (ZeRO, gradient reduction), so backward() calls them around the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/graph/graph.h"
#include "nn/island.h"

namespace metroplex::pipeline {

// Static buffers for the incoming gradients of a rank's backward graphs. A buffer is written right before the replay
// that reads it, so all islands and live sets share one per shape, dtype and index.
class GradientBuffers {
 public:
  // The buffer for gradients like `gradient`; `nth`: its index among the gradients of one backward.
  at::Tensor place_for(const at::Tensor& gradient, int64_t nth);
  int64_t bytes() const;

 private:
  std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int64_t>, at::Tensor> places_;
};

// What the graphs of a live set share. They replay in the order of their capture.
struct LiveSetMemory {
  cuda::GraphDevice& device;
  GradientBuffers& gradients;
  std::shared_ptr<cuda::GraphPool> pool;
  std::set<const void*> results;  // storages that hold the outputs of the set's graphs

  void left(const at::Tensor& result);
  bool holds(const at::Tensor& x) const;
};

class GraphedIsland {
 public:
  // Both outlive it.
  GraphedIsland(const nn::Island& island, LiveSetMemory& memory);

  struct Forward {
    const nn::Microbatch& batch;  // its tensors at the same addresses in every call (StaticBatches)
    bool evaluates = false;       // no backward follows; the same in every call
    nn::LossTerms* terms = nullptr;
  };
  // As nn::run_forward. Results are in the set's pool, which may reuse their memory as soon as the capturing run had
  // dropped them: a caller may hold them as long as it did then. Throws base::Error("cuda graph", ...) where inputs
  // differ from the captured ones in shape or dtype.
  nn::Values forward(const nn::Values& x, const Forward& how);
  // As nn::run_backward, of the last forward.
  nn::Gradients backward(const nn::Gradients& dy, const at::Tensor& loss_factor);

  const std::string& name() const { return island_.segments.front()->name(); }
  int64_t graphs() const { return forward_->captured() + backward_->captured(); }
  cuda::GraphSize size() const;
  int64_t input_bytes() const;   // of its own static input buffers
  int64_t result_bytes() const;  // of what it hands on, without inputs that pass through

 private:
  // An input of a graph. An output of an earlier graph of the same set is read where it lies, anything else is copied
  // into `place`.
  struct Entry {
    std::string name;
    at::Tensor place;
    bool copied = false;
  };
  void bring(const Entry& entry, const at::Tensor& value) const;
  void copy_in(const Entry& entry, const at::Tensor& value) const;
  nn::Values capture_forward(const nn::Values& x, const Forward& how);
  nn::Gradients capture_backward(const nn::Gradients& dy, const at::Tensor& loss_factor);
  cuda::GraphSize capture(cuda::Graph& graph, const char* pass, const std::function<void()>& work) const;

  const nn::Island& island_;
  LiveSetMemory& memory_;
  std::unique_ptr<cuda::Graph> forward_, backward_;
  std::vector<Entry> inputs_, gradients_;
  std::optional<Entry> loss_factor_;
  // The same in every replay; weak aliases, which do not keep pool memory allocated.
  nn::Values outputs_;
  nn::LossTerms terms_;
  nn::Gradients input_gradients_;
  nn::IslandRun run_;  // from the capture of the forward to that of the backward
  cuda::GraphSize forward_size_, backward_size_;
};

}  // namespace metroplex::pipeline
