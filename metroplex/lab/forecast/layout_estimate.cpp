#include "forecast/layout_estimate.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "config/experts.h"
#include "config/validate.h"
#include "forecast/host_traffic.h"
#include "plan/buckets.h"
#include "plan/layout.h"

namespace metroplex::forecast {
namespace {

// The layer's part of the layout: a model of one layer on the ranks that share a microbatch.
struct LayerRun {
  config::Config config;
  int world = 1;
};

bool holds_for_most(const std::vector<bool>& layers) {
  return 2 * std::count(layers.begin(), layers.end(), true) > std::ssize(layers);
}

// The model with one layer, with experts or linear attention if any layer has them.
config::Model one_layer(config::Model model) {
  const bool has_window = holds_for_most(config::window_layers(model));
  model.num_layers = 1;
  model.moe_layer_freq = "1";
  if (model.has_linear_attention()) model.linear_attention_freq = "[1]";
  model.mtp_num_layers = 0;
  model.window_attn_skip_freq.clear();
  model.no_rope_freq.clear();
  if (!has_window) model.window_size = -1, model.attention_chunk_size = 0, model.rotary_base_local = 0;
  if (model.query_scaling_floor > 0) model.query_scaling_floor = 0, model.query_scaling_beta = 0;
  return model;
}

LayerRun layer_run(const PlanRequest& request, Layout layout) {
  LayerRun run;
  run.world = static_cast<int>(std::lcm(layout.tp * layout.cp, layout.ep * layout.etp));
  layout.pp = layout.vpp = 1;
  layout.schedule = config::Schedule::automatic;
  layout.sharding = config::ShardingStrategy::no_shard;
  layout.offloads_activations = layout.offloads_optimizer = false;
  run.config = layout.apply(request.run.config);
  run.config.model = one_layer(request.run.config.model);
  run.config.train.global_batch_size = layout.micro_batch * layout.dp(run.world);
  run.config.train.rampup_batch_size.clear();
  const auto problems = config::violations(run.config, run.world);
  MPX_CHECK(problems.empty(), "cost", "a layer of this layout is refused");
  run.config = config::resolved(run.config, run.world);
  return run;
}

// Seconds of a microbatch, with exposed communication of the layers.
struct PassTimes {
  double forward = 0, backward = 0;
  double exposed = 0;  // included
};

PassTimes measure_passes(const PlanRequest& request, const LayerRun& run, const TracedRun& traced) {
  const replay::StepTime time = price_step(traced, run.config, request.machine, request.experts);
  const replay::RankTimes& times = time.ranks[0];
  double exposed = 0;
  for (const auto& [purpose, seconds] : times.exposed)
    exposed += purpose == "layers" || purpose == "experts" || purpose == "replicas" ? seconds : 0;
  const double compute = std::max(times.forward + times.backward, 1e-12);
  return {times.forward * (1 + exposed / compute), times.backward * (1 + exposed / compute), exposed};
}

// Removes the regions of the layer from the trace; embedding, head and loss remain.
TracedRun without_layer(TracedRun traced, int block) {
  for (replay::TracedAction& action : traced.traces[0].actions)
    std::erase_if(action.regions, [&](const replay::IslandTrace& region) { return region.block == block; });
  return traced;
}

constexpr int kLayerBlock = 1;  // the block after the embedding

void add(std::vector<double>& sum, const price::CollectiveCost& cost, double times) {
  for (size_t domain = 0; domain < sum.size(); ++domain) sum[domain] += times * cost.link_s[domain];
}

// Link seconds of the layer's collectives in a forward and a backward.
std::vector<double> layer_link_s(const price::Cluster& cluster, const replay::StepTrace& trace) {
  std::vector<double> sum(cluster.domains.size());
  for (const plan::ActionKind kind : {plan::ActionKind::forward, plan::ActionKind::backward}) {
    for (const replay::IslandTrace& region : trace.find(kind, 0, {}).regions) {
      for (const replay::TraceOperation& one : region.operations) {
        if (region.block != kLayerBlock || one.group.empty() || one.name == "wait" || one.name == "recv") continue;
        add(sum, cluster.collective_cost(one.name, trace.groups.at(one.group).ranks, static_cast<double>(one.bytes)),
            1);
      }
    }
  }
  return sum;
}

// Seconds by which transfers of `hidden` link seconds, spread over `passes` seconds, slow down exposed collectives of
// the layers on the same links.
double sharing_s(const std::vector<double>& hidden, double passes, const LayerCosts& layer) {
  const double layer_s = layer.forward_s + layer.backward_s;
  double most = 0;
  for (size_t domain = 0; domain < hidden.size(); ++domain)
    most =
        std::max(most, std::min(hidden[domain], passes) * std::min(layer.link_s[domain], layer.exposed_s) / layer_s);
  return most;
}

constexpr double kGradientBytes = 4;

bool is_half(const config::Config& config) {
  return config.precision.params_dtype == config::ParamsDtype::bf16 ||
         config.precision.params_dtype == config::ParamsDtype::fp16;
}
double param_bytes(const config::Config& config) { return is_half(config) ? 2 : 4; }
double state_bytes(const config::Config& config) { return is_half(config) ? 12 : 8; }

// Device memory of a parameter, its gradient and its optimizer state.
double bytes_per_param(const config::Config& config, double shards) {
  const double state = config.optim.optimizer_cpu_offload ? 0 : state_bytes(config);
  const config::Sharding sharding = config.parallel.sharding();
  return param_bytes(config) / (sharding.parameters ? shards : 1) +
         kGradientBytes / (sharding.gradients ? shards : 1) + state / (sharding.any() ? shards : 1);
}

struct Params {
  double dense = 0, experts = 0;
};

// ZeRO-2: gradient buckets that are filling and in reduction. ZeRO-3: the parameters of two layers and the
// gradients of one.
double transient_bytes(const config::Config& config, const LayerCosts& layer, const Params& stage, int64_t dp) {
  const config::Sharding sharding = config.parallel.sharding();
  if (!sharding.gradients) return 0;
  if (sharding.parameters) return (layer.params + layer.expert_params) * (2 * param_bytes(config) + kGradientBytes);
  const auto bucket = static_cast<double>(plan::gradient_bucket_size(config.parallel, sharding, dp));
  return kGradientBytes * (std::min(stage.dense, 2 * bucket) + std::min(stage.experts, 2 * bucket));
}

// Layers of a stage without embedding and head.
double slowest_stage_layers(const config::Config& config) {
  const config::Parallel& parallel = config.parallel;
  const bool counts = parallel.pp() > 1;
  const int64_t ends = counts ? (parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
                                    (parallel.account_for_loss_in_pipeline_split ? 1 : 0)
                              : 0;
  return static_cast<double>(config.model.num_layers + ends) / static_cast<double>(parallel.pp());
}

// Microbatches whose activations rank 0 holds at once.
double live_microbatches(const Layout& layout, int64_t microbatches) {
  if (layout.pp == 1) return 1;
  const auto pp = static_cast<double>(layout.pp), vpp = static_cast<double>(layout.vpp);
  const bool zb_v = layout.schedule == config::Schedule::zb_v;
  const double most = layout.vpp > 1 && !zb_v ? pp + (pp - 1) / vpp : pp;
  // zb_v: the chunk that ran forward last holds only its border if the rest is recomputed.
  const double empty = zb_v && layout.recompute == config::Recompute::full ? 0.5 : 0;
  return std::min(static_cast<double>(microbatches), most) - empty;
}

}  // namespace

LayerCosts LayoutEstimator::measure(const Layout& layout) const {
  const LayerRun run = layer_run(request_, layout);
  const TracedRun traced = trace_run({run.config, run.world, 0, request_.run.vocab_size, 1,
                                      request_.run.domains.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)});
  const PassTimes all = measure_passes(request_, run, traced),
                  ends = measure_passes(request_, run, without_layer(traced, kLayerBlock));
  LayerCosts costs;
  costs.forward_s = all.forward - ends.forward;
  costs.backward_s = all.backward - ends.backward;
  costs.exposed_s = all.exposed - ends.exposed;
  costs.link_s = layer_link_s(request_.machine.cluster, traced.traces[0]);
  costs.ends_s = ends.forward + ends.backward;
  for (const replay::IslandTrace& region : traced.traces[0].find(plan::ActionKind::forward, 0, {}).regions)
    costs.activations += region.block == kLayerBlock ? static_cast<double>(region.net()) : 0;
  for (const replay::TraceParam& param : traced.traces[0].params) {
    const bool expert = param.name.find(".experts.") != std::string::npos;
    const bool layer = param.name.find("decoder.layers.") != std::string::npos;
    (expert ? costs.expert_params : layer ? costs.params : costs.ends_params) += static_cast<double>(param.numel());
  }
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

price::CollectiveCost LayoutEstimator::byte_cost(const std::string& operation, int64_t count, int64_t stride) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = byte_costs_.try_emplace({operation, count, stride});
  if (!is_new) return known->second;
  std::vector<int> members;
  for (int64_t i = 0; i < count; ++i) members.push_back(static_cast<int>(i * stride));
  known->second = request_.machine.cluster.collective_cost(operation, members, 1);
  return known->second;
}

LayoutEstimate LayoutEstimator::estimate(const Layout& layout) {
  const LayerCosts layer = costs(layout);
  const config::Config config = layout.apply(request_.run.config);
  const int64_t world = request_.run.world_size, dp = layout.dp(world);
  const auto microbatches = static_cast<double>(config.train.global_batch_size / (dp * layout.micro_batch));
  const auto pp = static_cast<double>(layout.pp), vpp = static_cast<double>(layout.vpp);
  const double layers = static_cast<double>(config.model.num_layers) / pp;
  const double layer_s = layer.forward_s + layer.backward_s, middle = layers * layer_s;
  const double slowest = slowest_stage_layers(config) * layer_s;
  const double last =
      (slowest_stage_layers(config) - (layout.pp > 1 && config.parallel.account_for_loss_in_pipeline_split ? 1 : 0)) *
          layer_s +
      layer.ends_s;
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
  const bool sharded = layout.sharding != config::ShardingStrategy::no_shard;
  const auto collective = [&](const char* operation, double bytes_each) {
    price::CollectiveCost sum{.link_s = std::vector<double>(cluster.domains.size())};
    const auto add_group = [&](int64_t count, int64_t stride, double elements) {
      const price::CollectiveCost cost = byte_cost(operation, count, stride);
      add(sum.link_s, cost, bytes_each * elements);
      sum.latency_s = std::max(sum.latency_s, cost.latency_s);
    };
    add_group(dp * layout.cp, layout.tp, params);
    if (expert_params > 0) add_group(static_cast<int64_t>(expert_shards), layout.ep * layout.etp, expert_params);
    return sum;  // both use the links of the rank
  };
  const price::CollectiveCost reduction = collective(sharded ? "reduce_scatter" : "all_reduce", 4),
                              gathering = collective("all_gather", sharded ? 2 : 0);
  const double reduce = reduction.seconds(), gather = sharded ? gathering.seconds() : 0;
  // The chunks of a rank end one after another: pp microbatches of each pass between them.
  const double passes = layers * ((vpp - 1) * pp + 1) / vpp;
  double exposed = std::max(0.1 * reduce / vpp, reduce - passes * layer.backward_s) +
                   std::max(0.0, gather - passes * layer.forward_s);
  std::vector<double> hidden(cluster.domains.size());
  add(hidden, reduction, 1);
  const double backward = layers * layer.backward_s;
  if (layout.sharding == config::ShardingStrategy::optim_grads)
    exposed += (microbatches - 1) * (std::max(0.0, reduce - backward) + sharing_s(hidden, backward, layer));
  add(hidden, gathering, 2);
  if (layout.sharding == config::ShardingStrategy::optim_grads_params)
    exposed += microbatches * (std::max(0.0, 2 * gather + reduce - middle) + sharing_s(hidden, middle, layer));
  const double updated = params / (sharded ? shards : 1) + expert_params / (sharded ? expert_shards : 1);
  const double update =
      request_.machine.memory_bytes_per_s > 0 ? updated * 30 / (0.8 * request_.machine.memory_bytes_per_s) : 0;
  LayoutEstimate out;
  const HostSeconds host =
      host_seconds(request_.machine, layout.offloads_activations ? microbatches * layers * layer.activations : 0,
                   layout.offloads_optimizer ? updated * state_bytes(config) : 0,
                   microbatches * layers * layer.forward_s, microbatches * layers * layer.backward_s);
  out.seconds =
      microbatches * std::max(slowest, last) + bubble + p2p + exposed + update + host.activations + host.optimizer;
  const double live = live_microbatches(layout, static_cast<int64_t>(microbatches));
  // With a split backward, the inputs of a layer wait for the gradients of its weights, also with recomputation
  // or offload.
  Layout stores = layout;
  if (splits) stores.recompute = config::Recompute::none;
  const double stored = costs(stores).activations;
  out.bytes = params * bytes_per_param(config, shards) + expert_params * bytes_per_param(config, expert_shards) +
              transient_bytes(config, layer, {params, expert_params}, dp) +
              (layout.offloads_activations && !splits ? 0 : live * layers * stored);
  return out;
}

}  // namespace metroplex::forecast
