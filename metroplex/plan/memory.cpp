#include "plan/memory.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "config/optimizers.h"
#include "plan/buckets.h"
#include "plan/rank_model.h"
#include "plan/memory_replay.h"
#include "plan/schedules/registry.h"
#include "topology/rank_grid.h"

namespace metroplex::plan {
namespace {

constexpr int64_t kStateBlock = 256;  // 8-bit numbers that share an fp32 scale

struct Place {
  int64_t pp = 0, dp = 1;
  int64_t shard_size = 1, shard_index = 0;  // of the ranks that share state between them
};

Place place_of(const MemoryRequest& request) {
  using topology::Axis;
  const topology::RankGrid grid(request.world_size, request.config.parallel);
  Place place;
  place.pp = grid.coordinates(request.rank).pp;
  place.dp = grid.size(Axis::dp);
  if (!request.config.parallel.sharding().any()) return place;
  const topology::AxisSet axes{Axis::dp, Axis::cp};
  place.shard_size = grid.size(axes) / request.config.parallel.num_distributed_optimizer_instances;
  place.shard_index = grid.index_in_group(request.rank, axes) % place.shard_size;
  return place;
}

FlatRequest flat_request(const config::Config& config, const Place& place) {
  const config::Parallel& p = config.parallel;
  FlatRequest request;
  request.sharding = p.sharding();
  request.parts = place.shard_size;
  request.index = place.shard_index;
  request.bucket_size = gradient_bucket_size(p, place.shard_size * p.num_distributed_optimizer_instances);
  return request;
}

PipelineTable table_of(const config::Config& config, size_t chunks, int64_t num_microbatches) {
  const auto microbatches = static_cast<int>(num_microbatches);
  return build_schedule(config.parallel.pipeline_schedule,
                        schedule_request(config.parallel, static_cast<int>(chunks), microbatches));
}

int64_t state_bytes(int64_t size, config::MomentDtype dtype, bool fp64) {
  if (fp64) return 8 * size;
  if (dtype == config::MomentDtype::eight_bit) return size + 4 * ((size + kStateBlock - 1) / kStateBlock);
  return (dtype == config::MomentDtype::bf16 ? 2 : 4) * size;
}

const config::OptimizerTraits& optimizer_of(const config::Optim& o) {
  const config::OptimizerTraits* const found = config::find_optimizer(o.optimizer);
  MPX_ASSERT(found != nullptr, "optim.optimizer '", o.optimizer, "' has passed the rules");
  return *found;
}

// Main parameters and moments of `size` elements of one parameter.
void add_state(const config::Config& config, const RankParam& param, int64_t size, MemoryUse& use) {
  const config::Optim& o = config.optim;
  const config::Precision& precision = config.precision;
  const bool fp64 = precision.params_dtype == config::ParamsDtype::fp64;
  const config::OptimizerTraits* optimizer = &optimizer_of(o);
  if (optimizer->others != nullptr && !param.has_matrices()) optimizer = config::find_optimizer(optimizer->others);
  const bool in_place = !precision.half() || (precision.params_dtype == config::ParamsDtype::bf16 &&
                                              o.main_params_dtype == config::MainParamsDtype::bf16);
  if (!in_place) use.main_parameters += (o.store_param_remainders ? 2 : 4) * size;
  for (const config::OptimizerMoment& moment : optimizer->kept(o))
    use.moments += state_bytes(size, o.*moment.dtype, fp64);
}

// Two chunks of gradients and values lie on the host at a time.
void move_state_to_host(const FlatBuckets& flat, int64_t bytes_of_element, MemoryUse& use) {
  int64_t largest = 0;
  for (const int64_t own : flat.own) largest = std::max(largest, std::min(own, kOffloadChunk));
  use.host = use.main_parameters + use.moments + 2 * largest * bytes_of_element;
  use.main_parameters = use.moments = 0;
}

int64_t optimizer_working(const config::Config& config, const RankModel& model) {
  int64_t largest = 0;
  for (const RankParam& param : model.params) {
    if (param.has_matrices()) largest = std::max(largest, param.numel() * config.parallel.tp());
  }
  return optimizer_of(config.optim).whole_matrices * largest * wide_bytes(config.precision.params_dtype);
}

int64_t two_largest(const RankModel& model, const FlatBuckets& flat) {
  std::vector<int64_t> units{0, 0};
  size_t param = 0;
  for (const RankChunk& chunk : model.chunks) {
    for (const RankBlock& block : chunk.blocks) {
      int64_t size = 0;
      size_t last = flat.buckets.size();
      for (size_t i = 0; i < block.num_own; ++i, ++param) {
        if (flat.bucket_of[param] != last) size += flat.buckets[flat.bucket_of[param]].size;
        last = flat.bucket_of[param];
      }
      units.push_back(size);
    }
  }
  std::sort(units.rbegin(), units.rend());
  return units[0] + units[1];
}

}  // namespace

MemoryPrediction predict_memory(const MemoryRequest& request) {
  const config::Config& config = request.config;
  const Place place = place_of(request);
  const RankModel model = rank_model(config, place.pp, request.vocab_size);
  const FlatBuckets flat = flat_buckets(model, flat_request(config, place));
  const config::Sharding sharding = config.parallel.sharding();
  const int64_t element = element_bytes(config.precision.params_dtype);
  const int64_t gradient = memory_sizes(config, request.vocab_size).gradient;

  MemoryPrediction out;
  for (const RankParam& param : model.params) out.use.parameters += param.numel() * element;
  if (sharding.any()) out.use.parameters = (sharding.parameters ? flat.own_numel : flat.numel) * element;
  out.use.gradients = (sharding.gradients ? flat.own_numel : flat.numel) * gradient;
  for (size_t i = 0; i < model.params.size(); ++i) {
    if (flat.own[i] > 0) add_state(config, model.params[i], flat.own[i], out.use);
  }
  if (config.optim.optimizer_cpu_offload) move_state_to_host(flat, element + gradient, out.use);

  int64_t count = request.num_microbatches;
  if (count == 0) count = config.train.global_batch_size / (config.train.micro_batch_size * place.dp);
  MPX_CHECK(count > 0, "plan", "train.global_batch_size ", config.train.global_batch_size,
            " gives no microbatch for every data-parallel rank; raise it");
  const ReplayRequest replay{&model, &flat, &config, static_cast<int>(place.pp), gradient};
  const OldReplayPeaks peaks = replay_memory(table_of(config, model.chunks.size(), count), replay);
  out.borders = peaks.borders;
  out.gathered = peaks.gathered_elements * element;
  out.gradient_buckets = peaks.gradient_buckets;
  out.largest_units = sharding.gathers_units() ? two_largest(model, flat) * element : 0;
  out.use.activations = peaks.activations + peaks.borders;
  out.use.communication = out.gathered + out.gradient_buckets;
  // Of every microbatch tokens, labels, positions and numbers of samples as 8-byte integers, and the loss mask.
  const config::Train& train = config.train;
  const int64_t mask = config.precision.params_dtype == config::ParamsDtype::fp64 ? 8 : 4;
  out.batches = count * train.micro_batch_size * (train.seq_length * (3 * 8 + mask) + 8);
  const int64_t held = out.use.total() - out.use.activations - out.use.communication + out.batches;
  const int64_t losses = model.chunks.back().layers.has_loss ? count * model.loss : 0;
  out.peak = held + std::max(peaks.most, losses + optimizer_working(config, model));
  out.use.workspace = std::max<int64_t>(0, out.peak - out.use.total());
  out.moments = peaks.moments;
  return out;
}

MemoryPrediction predict_memory(const RankTrace& trace, const PipelineTable& table, int pp_rank) {
  const ReplayPeaks peaks = replay_trace(trace, table, pp_rank);
  MemoryPrediction out;
  out.use.parameters = trace.parameters;
  out.use.gradients = trace.gradients;
  out.use.main_parameters = trace.main_parameters;
  out.use.moments = trace.moments;
  out.use.host = trace.host;
  out.borders = peaks.borders;
  out.gathered = peaks.gathered;
  out.gradient_buckets = peaks.gradient_buckets;
  out.largest_units = trace.largest_units;
  out.batches = table.num_microbatches * trace.batch;
  out.peak = out.use.total() + out.batches + peaks.most;
  out.use.activations = peaks.activations + peaks.borders;
  out.use.communication = peaks.gathered + peaks.gradient_buckets;
  out.use.workspace = std::max<int64_t>(0, out.peak - out.use.total());
  out.moments = peaks.moments;
  return out;
}

}  // namespace metroplex::plan
