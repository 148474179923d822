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
  batch_.allocate(one);
}

std::vector<GraphedRegion>& GraphInstance::get_graphs(const StageGraphs& stage) {
  std::vector<GraphedRegion>& graphs = graphs_[&stage];
  if (graphs.empty()) {
    graphs.reserve(stage.regions().size());
    for (const nn::Region* region : stage.regions()) graphs.emplace_back(*region, memory_);
  }
  return graphs;
}

nn::Values GraphInstance::forward(const StageGraphs& stage, size_t graph, const nn::Values& x, nn::LossTerms* terms) {
  std::vector<GraphedRegion>& graphs = get_graphs(stage);
  return graphs.at(graph).forward(x, {batch_.batches().front(), evaluates_, terms, {graphs.data(), graph}});
}

nn::Gradients GraphInstance::backward(const StageGraphs& stage, size_t graph, const nn::Gradients& dy,
                                      const at::Tensor& loss_factor) {
  return get_graphs(stage).at(graph).backward(dy, loss_factor);
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
    for (const GraphedRegion& region : graphs) {
      const graph::GraphSize size = region.size();
      sizes.graphs += region.graphs();
      sizes.size.nodes += size.nodes;
      sizes.size.bytes += size.bytes;
      results += region.result_bytes();
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

StageGraphs::StageGraphs(std::vector<const nn::Region*> regions, std::shared_ptr<GraphInstances> instances)
    : islands_(std::move(regions)), instances_(std::move(instances)) {
  for (const nn::Region* region : islands_) check_capturable(*region);
}

}  // namespace metroplex::pipeline
