// Graph instances of a rank (plan/graph_plan.h). An instance is the memory of one pass of one microbatch through one
// chunk: a pool, static inputs, and the static microbatch that the layers read. Each chunk that runs in an instance
// has its own graphs there. A pass occupies its instance from its forward until its backward and all other readers of
// its results are done. A plan::GraphPlan assigns an instance to each pass.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "config/config.h"
#include "nn/region.h"
#include "nn/segment.h"
#include "pipeline/graphed_region.h"
#include "pipeline/static_batches.h"

namespace metroplex::pipeline {

// The captured segments of a stage: those that train.cuda_graph_modules names, or all segments of every layer. By
// default, no segment.
struct GraphScope {
  config::CudaGraphModules modules;
  bool layers = false;  // capture every segment of the blocks that count as a layer, instead of modules

  bool holds(const nn::Block& block, const nn::Segment& segment) const;
};

GraphScope graph_scope(const config::Train& train);

// Throws base::Error("cuda graph", ...) if the region cannot be captured, with the name of the segment or parameter,
// the reason and a suggested fix. Call after nn::count_uses.
void check_capturable(const nn::Region& region);

struct GraphSizes {
  int64_t graphs = 0;  // captured so far
  graph::GraphSize size;
  int64_t static_inputs = 0;  // bytes: microbatches, and inputs from layers that are not captured
  int64_t results = 0;        // bytes in the pools: graph results, per instance those of its largest chunk
  int64_t gradients = 0;      // bytes of the static buffers for incoming gradients
  graph::GraphPool::Bytes pools;

  void add(const GraphSizes& other);
};

class StageGraphs;

class GraphInstance {
 public:
  GraphInstance(graph::GraphDevice& device, StaticBuffers& gradients, at::Device batches_on, bool evaluates);
  GraphInstance(const GraphInstance&) = delete;
  GraphInstance& operator=(const GraphInstance&) = delete;

  // Call before each forward. If the form of `batch` differs from the previous one, the graphs of all chunks are
  // discarded and captured again.
  void begin(const nn::Microbatch& batch);
  // Run captured region `graph` of the stage. Call forward in order and backward in reverse order.
  nn::Values forward(const StageGraphs& stage, size_t graph, const nn::Values& x, nn::LossTerms* terms);
  nn::Gradients backward(const StageGraphs& stage, size_t graph, const nn::Gradients& dy,
                         const at::Tensor& loss_factor);
  GraphSizes sizes() const;
  graph::GraphPool::Bytes pool_bytes() const;  // zeros before the first pass
  const StaticBuffers& inputs() const { return memory_.inputs; }

 private:
  std::vector<GraphedRegion>& get_graphs(const StageGraphs& stage);

  InstanceMemory memory_;
  StaticBatches batch_;
  std::map<const StageGraphs*, std::vector<GraphedRegion>> graphs_;
  bool evaluates_;
};

// The graph instances of a rank, shared by all its stages.
class GraphInstances {
 public:
  // `device` must outlive this object.
  GraphInstances(graph::GraphDevice& device, at::Device batches_on) : device_(device), batches_on_(batches_on) {}

  // Returns the instance; creates it on first use. Training and evaluation have separate instances.
  GraphInstance& at(int number, bool evaluates);
  GraphSizes sizes(bool evaluation) const;  // `gradients` count as training
  const StaticBuffers& gradients() const { return gradients_; }

 private:
  graph::GraphDevice& device_;
  at::Device batches_on_;
  StaticBuffers gradients_;
  std::vector<std::unique_ptr<GraphInstance>> training_, evaluation_;
};

class StageGraphs {
 public:
  // `regions` must outlive this object. Throws like check_capturable().
  StageGraphs(std::vector<const nn::Region*> regions, std::shared_ptr<GraphInstances> instances);

  const std::vector<const nn::Region*>& regions() const { return islands_; }
  GraphInstances& instances() const { return *instances_; }

 private:
  std::vector<const nn::Region*> islands_;
  std::shared_ptr<GraphInstances> instances_;
};

}  // namespace metroplex::pipeline
