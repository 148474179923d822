// The captured islands of a stage, once for each live set: graphs, their pool, and the static microbatch that the
// layers read. A set is occupied by a microbatch from its forward until its backward and every other reader of its
// results are done. A plan::GraphPlan says which microbatch takes which set.
#pragma once

#include <memory>
#include <vector>

#include "config/config.h"
#include "nn/island.h"
#include "nn/segment.h"
#include "pipeline/graphed_island.h"
#include "pipeline/static_batches.h"

namespace metroplex::pipeline {

// Which segments of a stage are captured: those that train.cuda_graph_modules names, or all segments of every layer.
// By default nothing.
struct GraphScope {
  config::CudaGraphModules modules;
  bool layers = false;  // every segment of the blocks that count as a layer, instead of modules

  bool holds(const nn::Block& block, const nn::Segment& segment) const;
};

GraphScope graph_scope(const config::Train& train);

// Throws base::Error("cuda graph", ...) with the segment's or the parameter's name, the reason and the way out, where
// the island cannot be a graph. After nn::count_uses.
void check_capturable(const nn::Island& island);

struct GraphSizes {
  int64_t graphs = 0;  // captured so far
  cuda::GraphSize size;
  int64_t static_inputs = 0;  // bytes: microbatches, and what comes from layers that are not captured
  int64_t results = 0;        // bytes in the pools: what graphs hand on
  int64_t gradients = 0;      // bytes of GradientBuffers
  cuda::GraphPool::Bytes pools;

  void add(const GraphSizes& other);
};

class LiveSet {
 public:
  // `islands` outlive it.
  LiveSet(std::vector<const nn::Island*> islands, cuda::GraphDevice& device, GradientBuffers& gradients,
          at::Device batches_on, bool evaluates);
  LiveSet(const LiveSet&) = delete;
  LiveSet& operator=(const LiveSet&) = delete;

  // To be called before the forward of `batch`. If its shapes or dtypes differ from the last one's, the graphs of the
  // set are discarded and captured anew.
  void begin(const nn::Microbatch& batch);
  // Island number `graph` of the list, in order, and backwards in reverse.
  nn::Values forward(size_t graph, const nn::Values& x, nn::LossTerms* terms);
  nn::Gradients backward(size_t graph, const nn::Gradients& dy, const at::Tensor& loss_factor);
  GraphSizes sizes() const;

 private:
  void empty();

  std::vector<const nn::Island*> list_;
  LiveSetMemory memory_;
  StaticBatches batch_;
  std::vector<GraphedIsland> islands_;
  bool evaluates_;
};

class StageGraphs {
 public:
  // `islands` and `device` outlive it; `gradients` is the rank's. Throws as check_capturable().
  StageGraphs(std::vector<const nn::Island*> islands, cuda::GraphDevice& device, at::Device batches_on,
              std::shared_ptr<GradientBuffers> gradients);

  // Made at its first use. Training and evaluation have separate sets.
  LiveSet& set(int number, bool evaluates);
  GraphSizes sizes(bool evaluation) const;  // without GradientBuffers
  size_t islands() const { return list_.size(); }

 private:
  std::vector<const nn::Island*> list_;
  cuda::GraphDevice& device_;
  at::Device batches_on_;
  std::shared_ptr<GradientBuffers> gradients_;
  std::vector<std::unique_ptr<LiveSet>> training_, evaluation_;
};

}  // namespace metroplex::pipeline
