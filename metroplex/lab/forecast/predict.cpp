#include "forecast/predict.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "config/derived.h"
#include "config/validate.h"
#include "forecast/count_microbatches.h"
#include "plan/schedules/registry.h"
#include "plan/model_flops.h"
#include "topology/rank_grid.h"

namespace metroplex::forecast {

int64_t count_microbatches(const RankRequest& request) {
  const config::Train& train = request.config.train;
  if (request.num_microbatches > 0) return request.num_microbatches;
  if (request.config.parallel.hybrid_context_parallel) {
    // Number of maximal microbatches per rank that hold all tokens of the global batch.
    const int64_t most = std::min(config::most_hybrid_tokens(request.config), train.seq_length),
                  share = request.world_size / request.config.parallel.tp() * most;
    return (train.global_batch_size * train.seq_length + share - 1) / share;
  }
  const int64_t dp = config::data_parallel_size(request.config.parallel, request.world_size);
  const int64_t count = train.global_batch_size / (train.micro_batch_size * dp);
  MPX_CHECK(count > 0, "plan", "train.global_batch_size = ", train.global_batch_size,
            ": gives no microbatch for every data-parallel rank; raise it");
  return count;
}

namespace {

// Samples per step and data-parallel rank.
double count_samples(const RankRequest& request) {
  const config::Config& config = request.config;
  if (!config.parallel.hybrid_context_parallel)
    return static_cast<double>(count_microbatches(request) * config.train.micro_batch_size);
  return static_cast<double>(config.train.global_batch_size) /
         static_cast<double>(config::data_parallel_size(config.parallel, request.world_size));
}

double sum_flops(const replay::IslandTrace& region) {
  double sum = 0;
  for (const replay::TraceOperation& operation : region.operations) sum += operation.flops;
  return sum;
}

double sum_flops(const replay::ActionTrace& action) {
  double sum = 0;
  for (const replay::IslandTrace& region : action.regions) sum += sum_flops(region);
  return sum;
}

// FLOPs of one sample by the formula of plan/model_flops.h, over all ranks that hold a part of it.
double formula_flops(const RankRequest& request, const plan::StageLayers& stage, int64_t padded_vocab_size) {
  plan::ModelShape shape = plan::model_shape(request.config, stage.has_loss ? padded_vocab_size : 0);
  const auto first = shape.layers.begin() + stage.first_layer;
  std::vector<config::LayerParts> layers(first, first + stage.num_layers);
  shape.mtp_num_layers = stage.num_mtp_layers;
  layers.insert(layers.end(), shape.layers.end() - shape.mtp_num_layers, shape.layers.end());
  shape.layers = std::move(layers);
  return plan::step_flops(shape, {.batch_size = 1});
}

// FLOPs of this rank's layers by the formula, plus the output head on the last stage.
double model_flops(const RankRequest& request, const replay::RankTrace& trace) {
  const config::Config& config = request.config;
  const int64_t padded =
      config::padded_vocab_size(request.vocab_size, config.model.make_vocab_size_divisible_by, config.parallel.tp());
  double sum = 0;
  for (const replay::ChunkTrace& chunk : trace.chunks) sum += formula_flops(request, chunk.layers, padded);
  return sum / static_cast<double>(config.parallel.tp() * config.parallel.cp());
}

replay::MemoryPrediction predict_from_trace(const RankRequest& request, const replay::RankTrace& trace) {
  const config::Config& config = request.config;
  const topology::RankGrid grid(request.world_size, config.parallel);
  const plan::PipelineTable table =
      plan::build_schedule(config.parallel.pipeline_schedule,
                           plan::schedule_request(config.parallel, static_cast<int>(trace.chunks.size()),
                                                  static_cast<int>(count_microbatches(request))));
  return replay::predict_memory(trace, table, static_cast<int>(grid.coordinates(request.rank).pp),
                                predict_graphs(request, trace, table));
}

using GroupSizes = std::map<std::string, int64_t>;
GroupSizes context_groups(const config::Parallel& parallel, int64_t ranks) {
  GroupSizes sizes{{"cp", parallel.cp()}};
  for (int64_t size = 2; parallel.hybrid_context_parallel && size <= ranks; size *= 2)
    sizes[base::concat("hybrid-cp-", size)] = size;
  const std::vector<int64_t> levels = config::context_levels(parallel);
  if (!levels.empty()) sizes["cp-a2a"] = levels[0], sizes["cp-p2p"] = levels[1];
  return sizes;
}

// Bytes sent to other ranks; a collective excludes the part that stays on this rank.
int64_t sent_bytes(const replay::TraceOperation& operation, int64_t size) {
  if (operation.name == "send") return operation.bytes;
  if (operation.name == "all_gather" || operation.name == "reduce_scatter" || operation.name == "all_to_all")
    return operation.bytes / size * (size - 1);
  return 0;
}

struct AttentionTrace {
  int64_t bytes = 0;
  double flops = 0;
};
std::map<int, AttentionTrace> trace_attention(const replay::ActionTrace& action, const GroupSizes& sizes) {
  std::map<int, AttentionTrace> blocks;
  for (const replay::IslandTrace& region : action.regions) {
    for (const replay::TraceOperation& operation : region.operations) {
      const auto group = sizes.find(operation.group);
      if (group != sizes.end()) blocks[region.block].bytes += sent_bytes(operation, group->second);
      if (operation.name.starts_with("attention_")) blocks[region.block].flops += operation.flops;
    }
  }
  return blocks;
}

std::vector<ContextExchange> context_exchanges(const RankRequest& request, const replay::RankTrace& trace) {
  const config::Parallel& parallel = request.config.parallel;
  std::vector<ContextExchange> all;
  if (parallel.cp() == 1 && !parallel.hybrid_context_parallel) return all;
  const std::vector<config::CpCommType> types = config::cp_comm_types(parallel);
  const GroupSizes sizes = context_groups(parallel, request.world_size);
  for (const replay::ChunkTrace& chunk : trace.chunks) {
    const auto forward = trace_attention(chunk.forward, sizes);
    auto backward = trace_attention(chunk.backward, sizes);
    int64_t layer = chunk.layers.first_layer;
    for (const auto& [block, there] : forward) {
      const AttentionTrace& back = backward[block];
      all.push_back({layer, types[std::min(types.size() - 1, static_cast<size_t>(layer))], there.bytes, back.bytes,
                     there.flops, back.flops});
      ++layer;
    }
  }
  return all;
}

}  // namespace

replay::MemoryPrediction predict_memory(const RankRequest& request) {
  return predict_from_trace(request, trace_rank(request));
}

RankPrediction predict_rank(const RankRequest& request) { return predict_traced(request, trace_rank(request)); }

RankPrediction predict_traced(const RankRequest& request, const replay::RankTrace& trace) {
  RankPrediction out;
  out.memory = predict_from_trace(request, trace);
  for (const replay::TraceParam& param : trace.params) out.num_params += param.numel();
  const auto count = static_cast<double>(count_microbatches(request));
  for (const replay::ChunkTrace& chunk : trace.chunks) {
    out.stored_bytes += static_cast<double>(chunk.forward.added);
    out.forward_flops += count * sum_flops(chunk.forward);
    out.flops += count * (sum_flops(chunk.forward) + sum_flops(chunk.backward) + sum_flops(chunk.weight));
  }
  out.flops += sum_flops(trace.update);
  out.model_flops = count_samples(request) * model_flops(request, trace);
  out.exchanges = context_exchanges(request, trace);
  return out;
}

int64_t step_bytes(const replay::MemoryPrediction& prediction) {
  return prediction.peak - prediction.batches - prediction.tables - prediction.libraries - prediction.use.graphs -
         prediction.use.parameters - prediction.use.gradients - prediction.use.optimizer();
}

}  // namespace metroplex::forecast
