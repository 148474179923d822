// An island whose forward and backward are a graph each, for one live set (plan/graph_plan.h): over inputs and
// gradients that lie still, with what lies between the two in the set's pool. Capturing is a run like any other, the
// first one; after it the layers' code is not called. What the host has to hear of a backward, the uses of
// parameters, is told beside the graph.
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

// Where gradients enter the backward graphs of a rank, whatever island and live set: each tensor is written right
// before the replay that reads it, so there is one a form.
class GradientPlaces {
 public:
  // A place of the form of `gradient`; `nth` tells apart what enters the same backward.
  at::Tensor place_for(const at::Tensor& gradient, int64_t nth);
  int64_t bytes() const;

 private:
  std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int64_t>, at::Tensor> places_;
};

// What the graphs of a live set share. They replay in the order in which they were captured.
struct LiveSetMemory {
  cuda::GraphDevice& device;
  GradientPlaces& gradients;
  std::shared_ptr<cuda::GraphPool> pool;
  std::set<const void*> results;  // storages that replays leave results in

  void left(const at::Tensor& result);
  bool holds(const at::Tensor& x) const;
};

class GraphedIsland {
 public:
  // Both outlive it.
  GraphedIsland(const nn::Island& island, LiveSetMemory& memory);

  struct Forward {
    const nn::Microbatch& batch;  // at the same place every time
    bool evaluates = false;       // no backward follows; the same every time
    nn::LossTerms* terms = nullptr;
  };
  // As nn::run_forward. Results lie in the memory of the set until something else does there: what held them in the
  // capturing run may hold them as long in every run. Throws base::Error("cuda graph", ...) where inputs have another
  // form than at the capture.
  nn::Values forward(const nn::Values& x, const Forward& how);
  // As nn::run_backward, of the last forward.
  nn::Gradients backward(const nn::Gradients& dy, const at::Tensor& loss_factor);

  const std::string& name() const { return island_.segments.front()->name(); }
  int64_t graphs() const { return forward_->captured() + backward_->captured(); }
  cuda::GraphSize size() const;
  int64_t input_bytes() const;  // of the places that it has for itself

 private:
  // Where a graph reads; what lies there already, a result of the same set, is not copied.
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
  // Of every replay; they do not hold their memory.
  nn::Values outputs_;
  nn::LossTerms terms_;
  nn::Gradients input_gradients_;
  nn::IslandRun run_;  // from the capture of the forward to that of the backward
  cuda::GraphSize forward_size_, backward_size_;
};

}  // namespace metroplex::pipeline
