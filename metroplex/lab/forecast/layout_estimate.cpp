#include "forecast/layout_estimate.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "config/validate.h"
#include "plan/layout.h"

namespace metroplex::forecast {
namespace {

constexpr int kLayerMicrobatches = 3;

// The layer's part of the layout: a model of `layers` layers on the ranks that share a microbatch.
struct LayerRun {
  config::Config config;
  int world = 1;
};

LayerRun layer_run(const PlanRequest& request, Layout layout, int64_t layers) {
  LayerRun run;
  run.world = static_cast<int>(std::lcm(layout.tp * layout.cp, layout.ep * layout.etp));
  layout.pp = layout.vpp = 1;
  layout.schedule = config::Schedule::automatic;
  layout.sharding = config::ShardingStrategy::no_shard;
  run.config = layout.apply(request.run.config);
  run.config.model.num_layers = layers;
  run.config.model.moe_layer_freq = "1";
  run.config.model.mtp_num_layers = 0;
  run.config.train.global_batch_size = kLayerMicrobatches * layout.micro_batch * layout.dp(run.world);
  run.config.train.rampup_batch_size.clear();
  const auto problems = config::violations(run.config, run.world);
  MPX_CHECK(problems.empty(), "cost", "a layer of this layout is refused");
  run.config = config::resolved(run.config, run.world);
  return run;
}

// Sums over one rank of the run.
struct LayerSums {
  double forward_s = 0, backward_s = 0, activations = 0, params = 0, expert_params = 0;
};

LayerSums measure_layers(const PlanRequest& request, const LayerRun& run) {
  const RankRequest rank{run.config,
                         run.world,
                         0,
                         request.run.vocab_size,
                         kLayerMicrobatches,
                         request.run.domains.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)};
  LayerSums sums;
  const replay::StepTime time = price_step(trace_run(rank), run.config, request.machine, request.imbalance);
  const replay::RankTimes& times = time.ranks[0];
  double exposed = 0;
  for (const auto& [purpose, seconds] : times.exposed)
    exposed += purpose == "layers" || purpose == "experts" || purpose == "replicas" ? seconds : 0;
  const double compute = times.forward + times.backward;
  sums.forward_s = (times.forward + exposed * times.forward / compute) / kLayerMicrobatches;
  sums.backward_s = (times.backward + exposed * times.backward / compute) / kLayerMicrobatches;
  const replay::RankTrace trace = trace_rank(rank);
  const replay::ChunkTrace& chunk = trace.chunks.at(0);
  sums.activations = static_cast<double>(chunk.forward.added);
  for (const replay::TraceParam& param : trace.params)
    (param.name.find(".experts.") != std::string::npos ? sums.expert_params : sums.params) +=
        static_cast<double>(param.numel());
  return sums;
}

double bytes_per_param(const config::Config& config, double shards) {
  const bool half = config.precision.params_dtype == config::ParamsDtype::bf16 ||
                    config.precision.params_dtype == config::ParamsDtype::fp16;
  const double value = half ? 2 : 4, gradient = 4, state = half ? 12 : 8;
  const bool all = config.parallel.data_parallel_sharding_strategy == config::ShardingStrategy::optim_grads_params;
  return (all ? (value + gradient) / shards : value + gradient) + state / shards;
}

// Microbatches whose activations rank 0 holds at once.
double live_microbatches(const Layout& layout, int64_t microbatches) {
  if (layout.pp == 1) return 1;
  const auto pp = static_cast<double>(layout.pp), vpp = static_cast<double>(layout.vpp);
  const double most = layout.vpp > 1 && layout.schedule != config::Schedule::zb_v ? pp + (pp - 1) / vpp : pp;
  return std::min(static_cast<double>(microbatches), most);
}

}  // namespace

LayerCosts LayoutEstimator::measure(const Layout& layout) const {
  const LayerSums one = measure_layers(request_, layer_run(request_, layout, 1)),
                  two = measure_layers(request_, layer_run(request_, layout, 2));
  LayerCosts costs;
  costs.forward_s = two.forward_s - one.forward_s;
  costs.backward_s = two.backward_s - one.backward_s;
  costs.ends_s = std::max(0.0, 2 * one.forward_s - two.forward_s + 2 * one.backward_s - two.backward_s);
  costs.activations = two.activations - one.activations;
  costs.params = two.params - one.params;
  costs.expert_params = two.expert_params - one.expert_params;
  costs.ends_params = 2 * one.params - two.params;
  const config::Config& config = request_.run.config;
  costs.border = static_cast<double>(layout.micro_batch * config.train.seq_length * config.model.hidden_size) * 2 /
                 static_cast<double>(layout.cp * layout.tp);
  return costs;
}

LayerCosts LayoutEstimator::costs(const Layout& layout) {
  const Key key{layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.recompute};
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) {
      MPX_CHECK(found->second, "cost", "a layer of this layout is refused");
      return *found->second;
    }
  }
  std::optional<LayerCosts> measured;
  try {
    measured = measure(layout);
  } catch (const base::Error&) {}  // the rules refuse it: recorded as nullopt
  const std::lock_guard lock(mutex_);
  known_[key] = measured;
  MPX_CHECK(measured, "cost", "a layer of this layout is refused");
  return *measured;
}

LayoutEstimate LayoutEstimator::estimate(const Layout& layout) {
  const LayerCosts layer = costs(layout);
  const config::Config config = layout.apply(request_.run.config);
  const int64_t world = request_.run.world_size, dp = layout.dp(world);
  const auto microbatches = static_cast<double>(config.train.global_batch_size / (dp * layout.micro_batch));
  const auto pp = static_cast<double>(layout.pp), vpp = static_cast<double>(layout.vpp);
  const double layers = static_cast<double>(config.model.num_layers) / pp;
  const double ends = layer.ends_s / (layout.pp > 1 ? 2 : 1);  // of the last stage
  const double middle = layers * (layer.forward_s + layer.backward_s), slowest = middle + ends;
  const bool splits = config::splits_backward(layout.schedule);
  // The slowest stage works without pause; the first and last microbatches pass the other stages.
  const double bubble = (pp - 1) * middle / (splits ? 3 : vpp);
  const price::Cluster& cluster = request_.machine.cluster;
  double p2p = 0;
  if (layout.pp > 1) {
    const int64_t stride = world / layout.pp;
    p2p = 2 * (pp - 1) * cluster.between(0, stride).seconds(layer.border);
  }
  // Gradients and parameters: what the backward of the last microbatch does not hide.
  const double shards = static_cast<double>(dp * layout.cp);
  const double expert_shards = static_cast<double>(world / layout.pp / (layout.ep * layout.etp));
  const double params = layers * layer.params + layer.ends_params / (pp > 1 ? 2 : 1);
  const double expert_params = layers * layer.expert_params;
  std::vector<int> members;
  for (int64_t i = 0; i < dp * layout.cp; ++i) members.push_back(static_cast<int>(i * layout.tp));
  const bool sharded = layout.sharding != config::ShardingStrategy::no_shard;
  const double reduce = cluster.collective_seconds(sharded ? "reduce_scatter" : "all_reduce", members, 4 * params),
               gather = sharded ? cluster.collective_seconds("all_gather", members, 2 * params) : 0;
  const double window = layers * layer.backward_s / vpp;
  double exposed = std::max(0.1 * reduce, reduce - window) + std::max(0.0, gather - layers * layer.forward_s);
  if (layout.sharding == config::ShardingStrategy::optim_grads_params)
    exposed += microbatches * std::max(0.0, 2 * gather + reduce - middle);
  const double updated = params / (sharded ? shards : 1) + expert_params / (sharded ? expert_shards : 1);
  const double update =
      request_.machine.memory_bytes_per_s > 0 ? updated * 30 / (0.8 * request_.machine.memory_bytes_per_s) : 0;
  LayoutEstimate out;
  out.seconds = microbatches * slowest + bubble + p2p + exposed + update;
  const double live = live_microbatches(layout, static_cast<int64_t>(microbatches));
  out.bytes = params * bytes_per_param(config, sharded ? shards : 1) +
              expert_params * bytes_per_param(config, sharded ? expert_shards : 1) +
              live * layers * layer.activations;
  return out;
}

}  // namespace metroplex::forecast
