#include "forecast/predict.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "config/validate.h"
#include "plan/graph_plan.h"
#include "plan/schedules/registry.h"
#include "topology/rank_grid.h"

namespace metroplex::forecast {
namespace {

plan::GraphPlan build_plan(const RankRequest& request, const replay::GraphTrace& trace,
                           const plan::PipelineTable& table) {
  std::vector<int> regions;
  for (const replay::ChunkGraphs& graphs : trace.graphs) regions.push_back(graphs.regions);
  const topology::RankGrid grid(request.world_size, request.config.parallel);
  const auto rank = static_cast<int>(grid.coordinates(request.rank).pp);
  return plan::plan_graphs(table, rank, plan::alike_layers(regions));
}

// An instance has the inputs of all its chunks. Its pool grows to the maximum of their passes.
replay::GraphMemory instance_bytes(const plan::GraphPlan& plan, const replay::GraphTrace& trace,
                                   int64_t replay::ChunkGraphs::*pool) {
  replay::GraphMemory all;
  for (const std::vector<size_t>& chunks : plan.chunks_of_instance()) {
    int64_t most = 0;
    std::map<std::string, int64_t> inputs;
    for (const size_t chunk : chunks) {
      const replay::ChunkGraphs& graphs = trace.graphs.at(chunk);
      most = std::max(most, graphs.*pool);
      inputs.insert(graphs.inputs.begin(), graphs.inputs.end());
    }
    all.pools += most;
    for (const auto& [form, bytes] : inputs) all.static_buffers += bytes;
  }
  return all;
}

// Returns the number of microbatches of captured evaluations; 0: evaluation is not captured.
int evaluated_microbatches(const RankRequest& request, int trained) {
  const config::Train& train = request.config.train;
  const bool evaluates =
      (train.eval_interval > 0 || train.skip_train) && (train.eval_iters > 0 || train.full_validation);
  if (train.cuda_graph_impl != config::CudaGraphImpl::local || !evaluates) return 0;
  if (train.eval_global_batch_size == 0) return trained;
  const int64_t samples =
      train.micro_batch_size * config::data_parallel_size(request.config.parallel, request.world_size);
  return static_cast<int>(std::max<int64_t>(1, train.eval_global_batch_size / samples));
}

}  // namespace

replay::GraphMemory predict_graphs(const RankRequest& request, const replay::RankTrace& trace,
                                   const plan::PipelineTable& table) {
  replay::GraphMemory all;
  if (!trace.graphs) return all;
  const config::Config& config = request.config;
  const auto add = [&](const plan::PipelineTable& of, int64_t replay::ChunkGraphs::*pool) {
    const plan::GraphPlan plan = build_plan(request, *trace.graphs, of);
    const replay::GraphMemory instances = instance_bytes(plan, *trace.graphs, pool);
    all.static_buffers += instances.static_buffers + plan.num_instances * trace.batch;
    all.pools += instances.pools;
  };
  add(table, &replay::ChunkGraphs::pool);
  all.static_buffers += trace.graphs->gradients;
  if (const int evaluated = evaluated_microbatches(request, table.num_microbatches); evaluated > 0) {
    plan::ScheduleRequest evaluation =
        plan::schedule_request(config.parallel, static_cast<int>(trace.chunks.size()), evaluated);
    evaluation.forward_only = true;
    add(plan::build_schedule(config.parallel.pipeline_schedule, evaluation), &replay::ChunkGraphs::evaluation_pool);
  }
  return all;
}

}  // namespace metroplex::forecast
