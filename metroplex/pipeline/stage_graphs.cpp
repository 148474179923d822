#include "pipeline/stage_graphs.h"

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

LiveSet::LiveSet(std::vector<const nn::Island*> islands, cuda::GraphDevice& device, GradientBuffers& gradients,
                 at::Device batches_on, bool evaluates)
    : list_(std::move(islands)), memory_{device, gradients, nullptr, {}}, batch_(batches_on), evaluates_(evaluates) {}

// Graphs must be destroyed before their pool.
void LiveSet::empty() {
  islands_.clear();
  memory_.results.clear();
  memory_.pool = memory_.device.make_pool();
  for (const nn::Island* island : list_) islands_.emplace_back(*island, memory_);
}

void LiveSet::begin(const nn::Microbatch& batch) {
  const std::vector<nn::Microbatch> one{batch};
  if (batch_.fits(one)) return batch_.fill(one);
  empty();
  batch_.make(one);
}

nn::Values LiveSet::forward(size_t graph, const nn::Values& x, nn::LossTerms* terms) {
  return islands_.at(graph).forward(x, {batch_.batches().front(), evaluates_, terms});
}

nn::Gradients LiveSet::backward(size_t graph, const nn::Gradients& dy, const at::Tensor& loss_factor) {
  return islands_.at(graph).backward(dy, loss_factor);
}

GraphSizes LiveSet::sizes() const {
  GraphSizes sizes;
  sizes.static_inputs = batch_.bytes();
  if (memory_.pool) sizes.pools = memory_.pool->bytes();
  for (const GraphedIsland& island : islands_) {
    GraphSizes one;
    one.graphs = island.graphs();
    one.size = island.size();
    one.static_inputs = island.input_bytes();
    one.results = island.result_bytes();
    sizes.add(one);
  }
  return sizes;
}

StageGraphs::StageGraphs(std::vector<const nn::Island*> islands, cuda::GraphDevice& device, at::Device batches_on,
                         std::shared_ptr<GradientBuffers> gradients)
    : list_(std::move(islands)), device_(device), batches_on_(batches_on), gradients_(std::move(gradients)) {
  for (const nn::Island* island : list_) check_capturable(*island);
}

LiveSet& StageGraphs::set(int number, bool evaluates) {
  auto& sets = evaluates ? evaluation_ : training_;
  const auto index = static_cast<size_t>(number);
  if (sets.size() <= index) sets.resize(index + 1);
  if (!sets[index]) sets[index] = std::make_unique<LiveSet>(list_, device_, *gradients_, batches_on_, evaluates);
  return *sets[index];
}

GraphSizes StageGraphs::sizes(bool evaluation) const {
  GraphSizes sizes;
  for (const auto& set : evaluation ? evaluation_ : training_) {
    if (set) sizes.add(set->sizes());
  }
  return sizes;
}

}  // namespace metroplex::pipeline
