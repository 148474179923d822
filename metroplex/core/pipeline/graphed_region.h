// An autograd region (`Region`) whose forward and backward are one CUDA graph each, for one graph instance
// (plan/graph_plan.h). Inputs and incoming gradients have static buffers. Outputs and saved activations are in the
// instance's memory pool. The first run captures; later runs copy their inputs in and replay, without calling the
// layers' code. A replay cannot call the listeners of a parameter's uses (ZeRO, gradient reduction), so backward()
// calls them around the graph.
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

#include "graph/graph.h"
#include "nn/region.h"

namespace metroplex::pipeline {

// Static buffers by shape, dtype and index. A rank has one object for the incoming gradients of all backward graphs,
// because each gradient is written right before the replay that reads it. A graph instance has one object for its
// inputs.
class StaticBuffers {
 public:
  // Returns buffer number `nth` with the shape and dtype of `value`; allocates it on first use.
  at::Tensor buffer_for(const at::Tensor& value, int64_t nth);
  int64_t bytes() const;
  // Bytes of each buffer, by form and index: "Float [2, 3] 0".
  std::map<std::string, int64_t> sizes() const;

 private:
  std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int64_t>, at::Tensor> buffers_;
};

// The memory shared by all graphs of one instance, for every chunk that runs in it. Passes in an instance do not
// overlap, so each pass starts with an empty pool and may overwrite all inputs. The graphs of a pass replay in the
// order of their capture.
struct InstanceMemory {
  graph::GraphDevice& device;
  StaticBuffers& gradients;
  std::shared_ptr<graph::GraphPool> pool;
  StaticBuffers inputs;
  std::set<const void*> results;  // storages of the outputs of the instance's graphs

  void add_result(const at::Tensor& result);
  bool holds(const at::Tensor& x) const;
};

class GraphedRegion {
 public:
  // `region` and `memory` must outlive this object.
  GraphedRegion(const nn::Region& region, InstanceMemory& memory);

  struct Forward {
    const nn::Microbatch& batch;  // same tensor addresses in every call (StaticBatches)
    bool evaluates = false;       // no backward follows; the same in every call
    nn::LossTerms* terms = nullptr;
    std::span<const GraphedRegion> earlier = {};  // earlier regions of the same pass
  };
  // Like nn::run_forward. The pool may reuse the memory of a result as soon as the capturing run dropped it. A caller
  // may therefore hold a result only as long as the capturing run did. Throws base::Error("cuda graph", ...) if
  // inputs differ from the captured ones in shape or dtype.
  nn::Values forward(const nn::Values& x, const Forward& how);
  // Like nn::run_backward for the last forward.
  nn::Gradients backward(const nn::Gradients& dy, const at::Tensor& loss_factor);

  const std::string& name() const { return island_.segments.front()->name(); }
  int64_t graphs() const { return forward_->captured() + backward_->captured(); }
  graph::GraphSize size() const;
  int64_t result_bytes() const;  // size of the outputs, excluding inputs that pass through

 private:
  // An input of a graph. The output of an earlier graph of the same instance is read in place; any other value is
  // copied into `place`.
  struct Entry {
    std::string name;
    at::Tensor place;
    bool copied = false;
  };
  int64_t count_copied(const at::Tensor& x) const;  // number of copied inputs with the form of x
  void set_input(const Entry& entry, const at::Tensor& value) const;
  void copy_in(const Entry& entry, const at::Tensor& value) const;
  nn::Values capture_forward(const nn::Values& x, const Forward& how);
  nn::Gradients capture_backward(const nn::Gradients& dy, const at::Tensor& loss_factor);
  graph::GraphSize capture(graph::Graph& graph, const char* pass, const std::function<void()>& work) const;

  const nn::Region& island_;
  InstanceMemory& memory_;
  std::unique_ptr<graph::Graph> forward_, backward_;
  std::vector<Entry> inputs_, gradients_;
  std::optional<Entry> loss_factor_;
  // The same in every replay. Weak aliases, which do not keep pool memory allocated.
  nn::Values outputs_;
  nn::LossTerms terms_;
  nn::Gradients input_gradients_;
  nn::RegionRun run_;  // valid between forward capture and backward capture
  graph::GraphSize forward_size_, backward_size_;
};

}  // namespace metroplex::pipeline
