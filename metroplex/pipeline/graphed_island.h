// An island whose forward and backward are one graph each, for one graph instance (plan/graph_plan.h). Inputs and
// incoming gradients have static buffers; outputs and saved activations are in the instance's memory pool. The first
// run captures; every later one copies its inputs in and replays, and the layers' code is not called again. A replay
// cannot call listeners of a parameter's uses (ZeRO, gradient reduction), so backward() calls them around the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/graph/graph.h"
#include "nn/island.h"

namespace metroplex::pipeline {

// Static buffers by shape, dtype and index. A rank has one for the incoming gradients of all backward graphs, because
// each gradient is written right before the replay that reads it. A graph instance has one for its inputs.
class StaticBuffers {
 public:
  // Returns the buffer number `nth` of those with the form of `value`; makes it at its first use.
  at::Tensor buffer_for(const at::Tensor& value, int64_t nth);
  int64_t bytes() const;
  // Bytes of each buffer, by its form and index: "Float [2, 3] 0".
  std::map<std::string, int64_t> sizes() const;

 private:
  std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int64_t>, at::Tensor> buffers_;
};

// The memory that the graphs of one instance share: those of every chunk that runs in it. Passes in an instance do
// not overlap, so each pass begins with an empty pool and may overwrite all inputs. The graphs of a pass replay in
// the order of their capture.
struct InstanceMemory {
  cuda::GraphDevice& device;
  StaticBuffers& gradients;
  std::shared_ptr<cuda::GraphPool> pool;
  StaticBuffers inputs;
  std::set<const void*> results;  // storages that hold the outputs of the instance's graphs

  void add_result(const at::Tensor& result);
  bool holds(const at::Tensor& x) const;
};

class GraphedIsland {
 public:
  // Both outlive it.
  GraphedIsland(const nn::Island& island, InstanceMemory& memory);

  struct Forward {
    const nn::Microbatch& batch;  // its tensors at the same addresses in every call (StaticBatches)
    bool evaluates = false;       // no backward follows; the same in every call
    nn::LossTerms* terms = nullptr;
    std::span<const GraphedIsland> earlier = {};  // the islands of the same pass that run before this one
  };
  // As nn::run_forward. Results are in the instance's pool, which may reuse their memory as soon as the capturing run
  // had dropped them: a caller may hold them as long as it did then. Throws base::Error("cuda graph", ...) where
  // inputs differ from the captured ones in shape or dtype.
  nn::Values forward(const nn::Values& x, const Forward& how);
  // As nn::run_backward, of the last forward.
  nn::Gradients backward(const nn::Gradients& dy, const at::Tensor& loss_factor);

  const std::string& name() const { return island_.segments.front()->name(); }
  int64_t graphs() const { return forward_->captured() + backward_->captured(); }
  cuda::GraphSize size() const;
  int64_t result_bytes() const;  // of what it hands on, without inputs that pass through

 private:
  // An input of a graph. An output of an earlier graph of the same instance is read in place, anything else is copied
  // into `place`.
  struct Entry {
    std::string name;
    at::Tensor place;
    bool copied = false;
  };
  int64_t copied_like(const at::Tensor& x) const;  // copied inputs with the form of x
  void bring(const Entry& entry, const at::Tensor& value) const;
  void copy_in(const Entry& entry, const at::Tensor& value) const;
  nn::Values capture_forward(const nn::Values& x, const Forward& how);
  nn::Gradients capture_backward(const nn::Gradients& dy, const at::Tensor& loss_factor);
  cuda::GraphSize capture(cuda::Graph& graph, const char* pass, const std::function<void()>& work) const;

  const nn::Island& island_;
  InstanceMemory& memory_;
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
