#include "pipeline/stage_graphs.h"

#include <algorithm>
#include <utility>

namespace metroplex::pipeline {

void GraphSizes::add(const GraphSizes& other) {
  graphs += other.graphs;
  size.nodes += other.size.nodes;
  size.bytes += other.size.bytes;
  static_inputs += other.static_inputs;
  results += other.results;
  gradients += other.gradients;
  pools.live += other.pools.live;
  pools.peak += other.pools.peak;
  pools.reserved += other.pools.reserved;
}

GraphInstance::GraphInstance(graph::GraphDevice& device, StaticBuffers& gradients, at::Device batches_on,
                             bool evaluates)
    : memory_{device, gradients, nullptr, {}, {}}, batch_(batches_on), evaluates_(evaluates) {}

void GraphInstance::begin(const nn::Microbatch& batch) {
  const std::vector<nn::Microbatch> one{batch};
  if (batch_.fits(one)) return batch_.fill(one);
  graphs_.clear();  // before their pool
  memory_.results.clear();
  memory_.inputs = {};
  memory_.pool = memory_.device.make_pool();
  batch_.make(one);
}

std::vector<GraphedIsland>& GraphInstance::graphs_of(const StageGraphs& stage) {
  std::vector<GraphedIsland>& graphs = graphs_[&stage];
  if (graphs.empty()) {
    graphs.reserve(stage.islands().size());
    for (const nn::Island* island : stage.islands()) graphs.emplace_back(*island, memory_);
  }
  return graphs;
}

nn::Values GraphInstance::forward(const StageGraphs& stage, size_t graph, const nn::Values& x, nn::LossTerms* terms) {
  std::vector<GraphedIsland>& graphs = graphs_of(stage);
  return graphs.at(graph).forward(x, {batch_.batches().front(), evaluates_, terms, {graphs.data(), graph}});
}

nn::Gradients GraphInstance::backward(const StageGraphs& stage, size_t graph, const nn::Gradients& dy,
                                      const at::Tensor& loss_factor) {
  return graphs_of(stage).at(graph).backward(dy, loss_factor);
}

graph::GraphPool::Bytes GraphInstance::pool_bytes() const {
  return memory_.pool ? memory_.pool->bytes() : graph::GraphPool::Bytes();
}

GraphSizes GraphInstance::sizes() const {
  GraphSizes sizes;
  sizes.static_inputs = batch_.bytes() + memory_.inputs.bytes();
  sizes.pools = pool_bytes();
  for (const auto& [stage, graphs] : graphs_) {
    int64_t results = 0;
    for (const GraphedIsland& island : graphs) {
      const graph::GraphSize size = island.size();
      sizes.graphs += island.graphs();
      sizes.size.nodes += size.nodes;
      sizes.size.bytes += size.bytes;
      results += island.result_bytes();
    }
    sizes.results = std::max(sizes.results, results);
  }
  return sizes;
}

GraphInstance& GraphInstances::at(int number, bool evaluates) {
  auto& instances = evaluates ? evaluation_ : training_;
  const auto index = static_cast<size_t>(number);
  if (instances.size() <= index) instances.resize(index + 1);
  if (!instances[index])
    instances[index] = std::make_unique<GraphInstance>(device_, gradients_, batches_on_, evaluates);
  return *instances[index];
}

GraphSizes GraphInstances::sizes(bool evaluation) const {
  GraphSizes sizes;
  for (const auto& instance : evaluation ? evaluation_ : training_) {
    if (instance) sizes.add(instance->sizes());
  }
  if (!evaluation) sizes.gradients = gradients_.bytes();
  return sizes;
}

StageGraphs::StageGraphs(std::vector<const nn::Island*> islands, std::shared_ptr<GraphInstances> instances)
    : islands_(std::move(islands)), instances_(std::move(instances)) {
  for (const nn::Island* island : islands_) check_capturable(*island);
}

}  // namespace metroplex::pipeline
