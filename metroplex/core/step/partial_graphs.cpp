#include "step/partial_graphs.h"

#include <algorithm>

#include "step/assemble.h"

namespace metroplex::step {
namespace {

plan::GraphPlan planned(const Assembly& assembly, const plan::PipelineTable& table) {
  std::vector<int> regions;
  for (const auto& stage : assembly.stages) regions.push_back(static_cast<int>(stage->captured_regions().size()));
  const int rank = assembly.groups().pp.index();
  plan::GraphPlan plan = plan::plan_graphs(table, rank, plan::alike_layers(regions));
  plan::verify_graphs(plan, table, rank);
  return plan;
}

}  // namespace

PartialGraphs::PartialGraphs(Assembly& assembly, graph::GraphDevice& device)
    : a_(assembly),
      device_(device),
      instances_(std::make_shared<pipeline::GraphInstances>(device, a_.world->device())) {
  const pipeline::GraphScope scope = pipeline::graph_scope(a_.config.train);
  for (const auto& stage : a_.stages) stage->enable_capture(instances_, scope);
}

const plan::GraphPlan& PartialGraphs::find_plan(const plan::PipelineTable& table) {
  const auto key = std::make_pair(table.num_microbatches, table.forward_only);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, planned(a_, table)).first;
  if (!table.forward_only) last_training_ = &found->second;
  return found->second;
}

void PartialGraphs::select_graphs(pipeline::PipelineInput& run, bool eager) {
  const config::Train& train = a_.config.train;
  const bool evaluates = run.table.forward_only;
  if (evaluates && train.cuda_graph_impl != config::CudaGraphImpl::local) return;
  const bool repeats = a_.experts && a_.experts->buffers && a_.experts->buffers->repeats;
  if (eager || repeats) {  // a repeated step sends expert rows by host counts
    run.warmup_device = &device_;
    return;
  }
  int64_t& steps = evaluates ? evaluation_steps_ : training_steps_;
  if (steps++ < std::max<int64_t>(1, train.cuda_graph_warmup_steps)) {
    run.warmup_device = &device_;
  } else {
    run.graphs = &find_plan(run.table);
  }
}

PartialGraphs::Sizes PartialGraphs::sizes() const {
  Sizes sizes{instances_->sizes(false), instances_->sizes(true), 0};
  if (last_training_ != nullptr) sizes.planned = last_training_->num_graphs();
  return sizes;
}

}  // namespace metroplex::step
