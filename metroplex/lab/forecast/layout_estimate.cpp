#include "forecast/layout_estimate.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "config/optimizers.h"
#include "forecast/host_traffic.h"
#include "plan/buckets.h"
#include "plan/layout.h"

namespace metroplex::forecast {

// A layout with the costs of its layers.
struct LayoutEstimator::Run {
  Layout layout;
  config::Config config;
  const MicrobatchCosts& costs;
  LayerCosts mean = {};                     // of a pipeline rank's layers
  double slowest_s = 0;                     // a microbatch on the slowest pipeline rank
  std::vector<double> first_counts = {};    // layers of the first rank by form
  std::vector<double> smallest_chunk = {};  // the chunk of the first rank with the smallest activations
  double pp = 1, vpp = 1, microbatches = 1;
  double shards = 1, expert_shards = 1;  // ranks that share the state of a dense or expert parameter

  bool sharded() const { return layout.sharding != config::ShardingStrategy::no_shard; }
  bool splits_backward() const { return config::splits_backward(layout.schedule); }
  bool first_has_loss = true;
  // Dense elements on a rank in the mean, and on the first rank.
  double mean_params() const { return mean.params + (costs.embedding_params + costs.head_params) / (pp > 1 ? 2 : 1); }
  double first_params(const LayerCosts& layers) const {
    return layers.params + costs.embedding_params + (first_has_loss ? costs.head_params : 0);
  }
  // Elements that a rank updates.
  double updated() const {
    return mean_params() / (sharded() ? shards : 1) + mean.expert_params / (sharded() ? expert_shards : 1);
  }
};

namespace {

using Counts = std::vector<double>;  // layers by form

// Seconds by which transfers of `hidden` link seconds, spread over `passes` seconds, slow down exposed collectives of
// the layers on the same links.
double sharing_s(const std::vector<double>& hidden, double passes, const LayerCosts& layers) {
  double most = 0;
  for (size_t domain = 0; domain < hidden.size(); ++domain)
    most = std::max(most, std::min(hidden[domain], passes) * std::min(layers.link_s[domain], layers.exposed_s) /
                              layers.seconds());
  return most;
}

double param_bytes(const config::Config& config) { return config.precision.half() ? 2 : 4; }
double gradient_bytes(const config::Config& config) {
  return config.precision.main_grads_dtype == config::MainGradsDtype::params ? param_bytes(config) : 4;
}

double moment_bytes(config::MomentDtype dtype) {
  return dtype == config::MomentDtype::fp32 ? 4 : dtype == config::MomentDtype::bf16 ? 2 : 1;
}

// Main parameters and moments of a parameter.
double state_bytes(const config::Config& config) {
  const config::Optim& optim = config.optim;
  const bool has_main = config.precision.half() && optim.main_params_dtype == config::MainParamsDtype::fp32;
  double sum = !has_main ? 0 : optim.store_param_remainders ? 2 : 4;
  for (const config::OptimizerMoment& moment : config::find_optimizer(optim.optimizer)->kept(optim))
    sum += moment_bytes(optim.*moment.dtype);
  return sum;
}

// If only some parameters are trained, the estimate contains no gradients and state.
bool trains_all(const config::Config& config) { return !config.peft.lora() && config.train.trainable.empty(); }

// Time of reading and writing `bytes` at 0.8 of the memory's rate.
double memory_s(const price::Machine& machine, double bytes) {
  return machine.memory_bytes_per_s > 0 ? bytes / (0.8 * machine.memory_bytes_per_s) : 0;
}

// Bytes of a gathered parameter.
double gathered_bytes(const config::Config& config) {
  return config.precision.fp8_param_gather ? 1 : param_bytes(config);
}

// Gathered codes come on top of the values of the rank's shard. With library products, they are the kept weights.
double value_bytes(const config::Config& config, double shards) {
  const config::Precision& precision = config.precision;
  const double parts = config.parallel.sharding().parameters ? shards : 1;
  if (!precision.fp8_param_gather) return param_bytes(config) / parts;
  const bool kept = precision.fp8_products == config::Fp8Products::library && precision.keep_rounded_weights;
  return param_bytes(config) / shards + (kept ? 0 : 1) / parts;
}

// Device memory of a parameter, its gradient and its optimizer state.
double bytes_per_param(const config::Config& config, double shards) {
  const config::Sharding sharding = config.parallel.sharding();
  const double value = value_bytes(config, shards);
  if (!trains_all(config)) return value;
  const double state = config.optim.optimizer_cpu_offload ? 0 : state_bytes(config);
  return value + gradient_bytes(config) / (sharding.gradients ? shards : 1) + state / (sharding.any() ? shards : 1);
}

struct Params {
  double dense = 0, experts = 0;
};

// ZeRO-2: gradient buckets that are filling and in reduction. ZeRO-3: the parameters of two layers and the
// gradients of one.
double transient_bytes(const config::Config& config, const Params& layer, const Params& stage, int64_t dp) {
  const config::Sharding sharding = config.parallel.sharding();
  if (!sharding.gradients || !trains_all(config)) return 0;
  const double gradient = gradient_bytes(config);
  if (sharding.parameters) return (layer.dense + layer.experts) * (2 * param_bytes(config) + gradient);
  const auto bucket = static_cast<double>(plan::gradient_bucket_size(config.parallel, sharding, dp));
  return gradient * (std::min(stage.dense, 2 * bucket) + std::min(stage.experts, 2 * bucket));
}

// Microbatches whose activations rank 0 holds at once.
double live_microbatches(const Layout& layout, double microbatches) {
  if (layout.pp == 1) return 1;
  const auto pp = static_cast<double>(layout.pp), vpp = static_cast<double>(layout.vpp);
  const bool zb_v = layout.schedule == config::Schedule::zb_v;
  const double most = layout.vpp > 1 && !zb_v ? pp + (pp - 1) / vpp : pp;
  // zb_v: the chunk that ran forward last holds only its border if the rest is recomputed.
  const double empty = zb_v && layout.recompute == config::Recompute::full ? 0.5 : 0;
  return std::min(microbatches, most) - empty;
}

// Layers of each form by pipeline rank and chunk.
struct StageCounts {
  std::vector<std::vector<Counts>> ranks;  // [pp rank][chunk]
  size_t last = 0;                         // pp rank with the loss
};

StageCounts count_layers(const config::Config& config, const LayerForms& forms) {
  StageCounts out;
  out.ranks.resize(static_cast<size_t>(config.parallel.pp()));
  for (const plan::StageLayers& stage : plan::split_stages(config.parallel, config.model.num_layers)) {
    const auto rank = static_cast<size_t>(stage.pp_rank);
    Counts& counts = out.ranks[rank].emplace_back(forms.count());
    for (int64_t layer = stage.first_layer; layer < stage.first_layer + stage.num_layers; ++layer)
      ++counts[forms.of_layer[static_cast<size_t>(layer)]];
    if (stage.has_loss) out.last = rank;
  }
  return out;
}

Counts sum_chunks(const std::vector<Counts>& chunks) {
  Counts sum(chunks[0].size());
  for (const Counts& chunk : chunks)
    std::transform(sum.begin(), sum.end(), chunk.begin(), sum.begin(), std::plus<>());
  return sum;
}

Counts scale(Counts counts, double factor) {
  for (double& count : counts) count *= factor;
  return counts;
}

const MicrobatchCosts& costs_or_refusal(const std::variant<MicrobatchCosts, base::Error>& known) {
  if (const auto* refusal = std::get_if<base::Error>(&known)) throw base::Error(*refusal);
  return std::get<MicrobatchCosts>(known);
}

}  // namespace

const MicrobatchCosts& LayoutEstimator::costs(const Layout& layout) {
  const Key key{layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.recompute};
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) return costs_or_refusal(found->second);
  }
  std::variant<MicrobatchCosts, base::Error> measured;
  try {
    measured = measure_layers(request_, forms_, layout);
  } catch (const base::Error& refusal) { measured = refusal; }
  const std::lock_guard lock(mutex_);
  return costs_or_refusal(known_.try_emplace(key, std::move(measured)).first->second);
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

LayoutEstimator::Run LayoutEstimator::describe(const Layout& layout) {
  Run run{.layout = layout, .config = layout.apply(request_.run.config), .costs = costs(layout)};
  const int64_t world = request_.run.world_size, dp = layout.dp(world);
  run.pp = static_cast<double>(layout.pp), run.vpp = static_cast<double>(layout.vpp);
  run.microbatches = static_cast<double>(run.config.train.global_batch_size / (dp * layout.micro_batch));
  run.shards = static_cast<double>(dp * layout.cp);
  run.expert_shards = static_cast<double>(world / layout.pp / (layout.ep * layout.etp));
  const StageCounts stages = count_layers(run.config, forms_);
  Counts all(forms_.count());
  for (const size_t form : forms_.of_layer) ++all[form];
  run.mean = sum_layers(run.costs, scale(all, 1 / run.pp));
  run.first_has_loss = stages.last == 0;
  const double later = trains_all(run.config) ? 1 - 1 / run.microbatches : 0;
  for (size_t rank = 0; rank < stages.ranks.size(); ++rank) {
    const LayerCosts layers = sum_layers(run.costs, sum_chunks(stages.ranks[rank]));
    // The costs are those of a first microbatch. Later ones also read the earlier gradients of experts.
    const double earlier = gradient_bytes(run.config) * layers.expert_params;
    const double seconds = layers.seconds() + later * memory_s(request_.machine, earlier);
    const double ends = (rank == 0 ? run.costs.embedding_s : 0) + (rank == stages.last ? run.costs.head_s : 0);
    run.slowest_s = std::max(run.slowest_s, seconds + ends);
  }
  const auto activations = [&](const Counts& counts) { return sum_layers(run.costs, counts).activations; };
  const std::vector<Counts>& first = stages.ranks[0];
  run.first_counts = sum_chunks(first);
  run.smallest_chunk = *std::min_element(first.begin(), first.end(), [&](const Counts& one, const Counts& other) {
    return activations(one) < activations(other);
  });
  return run;
}

// The slowest stage works without pause; the first and last microbatches pass the other stages. With one chunk per
// rank, the first stage runs pp forwards before the first backward: pp microbatches take at least one round trip. If
// the backward is split, gradients of weights need not be part of it.
double LayoutEstimator::pipeline_s(const Run& run) const {
  const double bubble = (run.pp - 1) * run.mean.seconds() / (run.splits_backward() ? 3 : run.vpp);
  const int64_t stride = request_.run.world_size / run.layout.pp;
  const double messages =
      run.pp > 1 ? 2 * (run.pp - 1) * request_.machine.cluster.between(0, stride).seconds(run.costs.border) : 0;
  const double layers = run.pp * run.mean.seconds() + run.costs.ends_s();
  const double round_trip = run.vpp > 1 ? 0 : messages + layers * (run.splits_backward() ? 2.0 / 3 : 1);
  return run.microbatches * std::max(run.slowest_s, round_trip / run.pp) + bubble + messages;
}

// A collective over all gradients or parameters of a rank. Dense and expert parameters use the same links.
price::CollectiveCost LayoutEstimator::traffic(const Run& run, const char* operation, double bytes_each) {
  price::CollectiveCost sum{.link_s = std::vector<double>(request_.machine.cluster.domains.size())};
  const auto add_group = [&](double count, int64_t stride, double elements) {
    const price::CollectiveCost cost = byte_cost(operation, static_cast<int64_t>(count), stride);
    add_links(sum.link_s, cost.link_s, bytes_each * elements);
    sum.latency_s = std::max(sum.latency_s, cost.latency_s);
  };
  const Layout& layout = run.layout;
  add_group(run.shards, layout.tp, run.mean_params());
  if (run.mean.expert_params > 0) add_group(run.expert_shards, layout.ep * layout.etp, run.mean.expert_params);
  return sum;
}

// The part of gradient reductions and parameter gathers that passes do not hide.
double LayoutEstimator::exposed_traffic_s(const Run& run) {
  using config::ShardingStrategy;
  const price::CollectiveCost reduction = traffic(run, run.sharded() ? "reduce_scatter" : "all_reduce",
                                                  gradient_bytes(run.config)),
                              gathering = traffic(run, "all_gather", run.sharded() ? gathered_bytes(run.config) : 0);
  const double reduce = reduction.seconds(), gather = run.sharded() ? gathering.seconds() : 0;
  const double forward = run.mean.forward_s, backward = run.mean.backward_s, both = run.mean.seconds();
  // The chunks of a rank end one after another: pp microbatches of each pass between them.
  const double passes = ((run.vpp - 1) * run.pp + 1) / run.vpp;
  double exposed =
      std::max(0.1 * reduce / run.vpp, reduce - passes * backward) + std::max(0.0, gather - passes * forward);
  std::vector<double> hidden(reduction.link_s.size());
  add_links(hidden, reduction.link_s, 1);
  if (run.layout.sharding == ShardingStrategy::optim_grads)
    exposed += (run.microbatches - 1) * (std::max(0.0, reduce - backward) + sharing_s(hidden, backward, run.mean));
  add_links(hidden, gathering.link_s, 2);
  if (run.layout.sharding == ShardingStrategy::optim_grads_params)
    exposed += run.microbatches * (std::max(0.0, 2 * gather + reduce - both) + sharing_s(hidden, both, run.mean));
  return exposed;
}

double LayoutEstimator::update_s(const Run& run) const {
  const double update = memory_s(request_.machine, 30 * run.updated());
  const double activations = run.layout.offloads_activations ? run.microbatches * run.mean.activations : 0,
               state = run.layout.offloads_optimizer ? run.updated() * state_bytes(run.config) : 0;
  const HostSeconds host = host_seconds(request_.machine, activations, state, run.microbatches * run.mean.forward_s,
                                        run.microbatches * run.mean.backward_s);
  return update + host.activations + host.optimizer;
}

// Memory of the first rank.
double LayoutEstimator::bytes(const Run& run) {
  // With a split backward, the inputs of a layer wait for the gradients of its weights, also with recomputation or
  // offload.
  const bool splits = run.splits_backward();
  Layout stores = run.layout;
  if (splits) stores.recompute = config::Recompute::none;
  const LayerCosts first = sum_layers(run.costs, run.first_counts);
  // The chunks hold different numbers of microbatches.
  const double stored = run.layout.offloads_activations && !splits
                            ? 0
                            : run.vpp * sum_layers(costs(stores), run.smallest_chunk).activations;
  const double count = std::max(1.0, std::accumulate(run.first_counts.begin(), run.first_counts.end(), 0.0));
  const Params stage{run.first_params(first), first.expert_params},
      layer{first.params / count, first.expert_params / count};
  return stage.dense * bytes_per_param(run.config, run.shards) +
         stage.experts * bytes_per_param(run.config, run.expert_shards) +
         transient_bytes(run.config, layer, stage, run.layout.dp(request_.run.world_size)) +
         live_microbatches(run.layout, run.microbatches) * stored +
         (run.config.parallel.sharding().parameters ? 0 : first.rounded_weights);
}

LayoutEstimate LayoutEstimator::estimate(const Layout& layout) {
  const Run run = describe(layout);
  return {pipeline_s(run) + exposed_traffic_s(run) + update_s(run), bytes(run)};
}

}  // namespace metroplex::forecast
