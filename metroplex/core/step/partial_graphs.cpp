#include "step/partial_graphs.h"

#include <algorithm>

namespace metroplex::step {
namespace {

plan::GraphPlan plan_graphs(const ProcessContext& process, const RankModel& model, const plan::PipelineTable& table) {
  std::vector<int> regions;
  for (const auto& stage : model.stages) regions.push_back(static_cast<int>(stage->captured_regions().size()));
  const int rank = process.groups().pp.index();
  plan::GraphPlan plan = plan::plan_graphs(table, rank, plan::alike_layers(regions));
  plan::verify_graphs(plan, table, rank);
  return plan;
}

}  // namespace

PartialGraphs::PartialGraphs(const ProcessContext& process, const RankModel& model, graph::GraphDevice& device)
    : process_(process),
      model_(model),
      device_(device),
      instances_(std::make_shared<pipeline::GraphInstances>(device, process.world->device())) {
  const pipeline::GraphScope scope = pipeline::graph_scope(process.config.train);
  for (const auto& stage : model.stages) stage->enable_capture(instances_, scope);
}

const plan::GraphPlan& PartialGraphs::find_plan(const plan::PipelineTable& table) {
  const auto key = std::make_pair(table.num_microbatches, table.forward_only);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, plan_graphs(process_, model_, table)).first;
  if (!table.forward_only) last_training_ = &found->second;
  return found->second;
}

void PartialGraphs::select_graphs(pipeline::PipelineInput& run, bool eager) {
  const config::Train& train = process_.config.train;
  const bool evaluates = run.table.forward_only;
  if (evaluates && train.cuda_graph_impl != config::CudaGraphImpl::local) return;
  const bool repeats = model_.experts && model_.experts->buffers && model_.experts->buffers->repeats;
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
