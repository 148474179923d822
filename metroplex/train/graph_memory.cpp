#include "train/predict.h"

#include <map>
#include <set>
#include <vector>

#include "config/experts.h"
#include "config/family.h"
#include "config/validate.h"
#include "plan/graph_exits.h"
#include "plan/schedules/registry.h"
#include "topology/rank_grid.h"

namespace metroplex::train {
namespace {

constexpr int kDense = 0, kExperts = 1, kTopQuery = 2;  // signatures

plan::CapturedLayer captured_layer(const config::Config& config, bool experts) {
  const config::Parallel& p = config.parallel;
  const config::Model& m = config.model;
  plan::CapturedLayer layer;
  layer.tokens = config.train.seq_length * config.train.micro_batch_size / (p.sequence_parallel ? p.tp() : 1);
  layer.hidden_size = m.hidden_size;
  const config::ParamsDtype type = config.precision.params_dtype;
  layer.element = type == config::ParamsDtype::fp64 ? 8 : type == config::ParamsDtype::fp32 ? 4 : 2;
  if (config.precision.fp32_residual_connection && layer.element < 4) layer.residual = 4;
  if (!experts) return layer;
  layer.num_experts = m.num_moe_experts;
  layer.topk = m.moe_router_topk;
  layer.probability = layer.element == 8 ? 8 : 4;
  layer.etp = p.etp(), layer.ep = p.ep();
  layer.slots = config::echo_slots(m, p.ep()) * p.ep();
  layer.exchanges = p.etp() * p.ep() > 1 || m.moe_token_dispatcher_type == config::TokenDispatcher::static_buffer;
  return layer;
}

}  // namespace

int64_t predict_graphs(const RankRequest& request, const plan::RankTrace& trace, const plan::PipelineTable& table) {
  const config::Config& config = request.config;
  if (!config.train.captures_parts()) return 0;
  const config::CudaGraphModules modules =
      config.train.cuda_graph_modules.empty() ? config::CudaGraphModules() : config.train.captured_modules();
  const std::vector<bool> experts = config::moe_layers(config.model);
  std::map<int, plan::GraphTensors> tensors;
  for (const int kind : {kDense, kExperts}) {
    const auto captured = plan::captured_tensors(captured_layer(config, kind == kExperts), modules);
    if (captured) tensors[kind] = *captured;
  }
  // Queries of the last layer come beside the hidden states, from where nothing is captured.
  const bool top_query = config::family(config.model.family).top_query && !modules.empty();
  if (top_query && tensors.count(kDense) > 0) {
    plan::GraphTensors& top = tensors[kTopQuery] = tensors[kDense];
    if (top.from_start) top.inputs.push_back(top.inputs.front());
    top.from_start = false;
  }
  plan::GraphLayers layers;
  for (const plan::ChunkTrace& chunk : trace.chunks) {
    std::vector<int>& kinds = layers.signatures.emplace_back();
    const auto add = [&](int kind) {
      if (tensors.count(kind) > 0) kinds.push_back(kind);
    };
    for (int64_t i = 0; i < chunk.layers.num_layers; ++i)
      add(experts[static_cast<size_t>(chunk.layers.first_layer + i)] ? kExperts : kDense);
    if (top_query && chunk.layers.has_loss) add(kTopQuery);
  }
  const auto bytes = [&](const plan::PipelineTable& of) {
    const auto rank =
        static_cast<int>(topology::RankGrid(request.world_size, config.parallel).coordinates(request.rank).pp);
    const plan::GraphPlan plan = plan::plan_graphs(of, rank, layers);
    const plan::GraphBytes graphs = plan::graph_bytes(plan, layers, tensors);
    return graphs.inputs + graphs.gradients + plan.num_sets() * trace.batch;
  };
  int64_t all = bytes(table);
  if (config.train.cuda_graph_impl == config::CudaGraphImpl::local && config.train.eval_iters > 0) {
    plan::ScheduleRequest evaluation =
        plan::schedule_request(config.parallel, static_cast<int>(trace.chunks.size()), table.num_microbatches);
    evaluation.forward_only = true;
    all += bytes(plan::build_schedule(config.parallel.pipeline_schedule, evaluation));
  }
  return all;
}

}  // namespace metroplex::train
